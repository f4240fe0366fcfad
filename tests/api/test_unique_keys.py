"""Keys that a JSON object has twice are found, and nothing else is refused; values are counted."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.http.body import NAMED_BYTES, RequestBody, checked_body
from headrace.api.http.call_context import HttpCall
from headrace.errors import InvalidRequest
from headrace.inference.accounts import Account
from headrace.json_text import counts_of, key_count, largest_counts
from headrace.storage.keys import KeyLimits


class AnyBody(RequestBody):
    """Has no fields: what is left to find are keys that are there twice."""


def refuse_duplicate_keys(body: bytes) -> None:
    call = HttpCall(request_id="r", method="POST", path="/", account=Account("", KeyLimits()))
    try:
        checked_body(AnyBody, body, call)
    except InvalidRequest as error:
        if error.code == "duplicate_key":
            raise


TEXT = st.text(alphabet=st.sampled_from('ab:"\\u003é\n{}'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_has_each_key_once_passes(value: object) -> None:
    for text in (
        json.dumps(value),
        json.dumps(value, indent=1, ensure_ascii=False, separators=(" ,", " : ")),
    ):
        refuse_duplicate_keys(text.encode())


@given(VALUES, TEXT)
def test_a_key_twice_is_found(value: object, key: str) -> None:
    member = f"{json.dumps(key)}: {json.dumps(value)}"
    for text in (f"{{{member}, {member}}}", f'[1, {{"x": {{{member}, "a:": 1, {member}}}}}]'):
        with pytest.raises(InvalidRequest) as refused:
            refuse_duplicate_keys(text.encode())
        assert refused.value.code == "duplicate_key"


@pytest.mark.parametrize(
    "text",
    [
        r'{"a":"\u003a","b":":"}',
        r'{"a":"\u003A\u003a\\u003a\\\u003a"}',
        r'{"\u003a":1,"a":"\\"}',
        "not JSON",
        '{"a":1,"a":',
        "",
    ],
)
def test_what_passes(text: str) -> None:
    refuse_duplicate_keys(text.encode())


@pytest.mark.parametrize(
    "text",
    [r'{"a":1,"a":"\u003a"}', r'{"a":1,"\u0061":2}', r'{"b":"\\\u003a","x":[{"a":1,"c":2,"a":{"d":":"}}]}'],
)
def test_escapes_hide_nothing(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the key 'a' twice") as refused:
        refuse_duplicate_keys(text.encode())
    assert refused.value.param == "a"


def test_in_large_bodies_the_key_is_not_named() -> None:
    with pytest.raises(InvalidRequest, match="a key twice"):
        refuse_duplicate_keys(b'{"a":1,"a":"' + b"x" * NAMED_BYTES + b'"}')


def values_in(value: object) -> tuple[int, int]:
    """Values and containers, empty containers twice, as the definition of `counts_of` has them."""
    if not isinstance(value, dict | list):
        return 1, 0
    inner = [values_in(one) for one in (value.values() if isinstance(value, dict) else value)]
    containers = 1 + sum(one[1] for one in inner)
    return 1 + max(sum(one[0] for one in inner), 1 if not inner else 0), containers


@given(VALUES, st.integers(1, 9))
def test_values_are_counted_in_any_pieces(value: object, piece: int) -> None:
    raw = json.dumps(value, indent=1, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.json_text._PIECE_BYTES", piece)
        counts = counts_of(raw)
    assert (counts.values, counts.containers) == values_in(value)
    assert largest_counts(raw).values >= counts.values
    assert largest_counts(raw).containers >= counts.containers
    assert key_count(raw) == msgspec.json.encode(value).count(b":") - strings_of(value).count(":")


def strings_of(value: object) -> str:
    if isinstance(value, dict):
        return "".join(f"{key}{strings_of(one)}" for key, one in value.items())
    if isinstance(value, list):
        return "".join(map(strings_of, value))
    return value if isinstance(value, str) else ""
