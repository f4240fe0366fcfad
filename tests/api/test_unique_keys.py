"""Keys that a JSON object has twice are found, and nothing else is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.http.body import NAMED_BYTES, refuse_duplicate_keys
from headrace.errors import InvalidRequest

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
