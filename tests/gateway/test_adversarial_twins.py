"""No request ever gets the answer of one that only looks like it."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
import pytest
from cached import Cached, Echo, chat
from msgspec.structs import replace
from twins import twins

from headrace.chat.messages import Image, Message, ToolCall
from headrace.chat.tools import Tool, ToolUse
from headrace.engine.request import Targets
from headrace.gateway.near_answers import NEIGHBORS, agreed
from headrace.gateway.response_key import WITHOUT_EFFECT, ModelIdentity, key_of
from headrace.gateway.typed_values import NotEncodable, decode_value, encode_value
from headrace.grammar.constraint import Constraint
from headrace.inference.requests import (
    ChatRequest,
    CompletionRequest,
    ReasoningSettings,
    RouteWishes,
    ScalingSettings,
    Truncation,
)
from headrace.sampling.params import PARAMETERS, SamplingParams, with_defaults

PAIRS = list(twins())
# A value of each field that is not its default. A field that is added is missing here, and the test says so.
CHANGED: dict[str, Any] = {
    "cache_key": "mine",
    "sampling": {"temperature": 0, "top_k": 3},
    "constraint": Constraint("json_object"),
    "scaling": ScalingSettings(vote=True),
    "context_limit": 77,
    "fit_context": True,
    "finish_within_max_tokens": True,
    "disable_additional_properties": False,
    "show_prompt": True,
    "guards": ("one",),
    "truncate": Truncation(5),
    "messages": (Message("user", "other"),),
    "tools": ToolUse((Tool("f", "", {}),), (Tool("f", "", {}),)),
    "tool_format": "hermes",
    "reasoning": ReasoningSettings(enabled=True),
    "template_variables": {"enable_thinking": True},
    "add_generation_prompt": False,
    "continue_final_message": True,
    "literal": True,
    "context": (1, 2),
    "prediction": "hello",
    "prompts": ("other",),
    "suffix": "end",
    "route": RouteWishes(quality=0.99),
}
EQUAL: dict[str, Any] = {
    "id": "other",
    "model": "alias",
    "keep_alive_s": 1.0,
    "priority": 5,
    "deadline_s": 9.0,
    "slo": Targets(1.0, 1.0),
    "cache": "near",
}


def key(request: Any, **identity: Any) -> bytes:
    params = with_defaults(SamplingParams(), request.sampling)
    known = {"name": "m", "digest": b"d", "params": params} | identity
    return key_of(request, ModelIdentity(**known), b"tenant")


def test_there_are_500_pairs() -> None:
    assert len({(one, other) for _, one, other in PAIRS}) >= 500


@pytest.mark.parametrize("near", ["off", "draft", "answer"])
def test_twins_get_their_own_answers(near: str) -> None:
    async def check() -> int:
        echo = Echo(lambda request, number: f"echo {request.messages[-1].content}")
        cached, false_hits = Cached(echo, near=near), 0
        for _, one, other in PAIRS:
            for question in (one, other):
                found, _, _ = await cached.ask(chat(question, cache="near"))
                false_hits += found != f"echo {question}"
        return false_hits

    assert asyncio.run(check()) == 0


def test_marks_stop_numbers_negations_and_order() -> None:
    """Before any certificate: five neighbors that agree are not enough where the marks differ."""
    stopped: dict[str, list[bool]] = {}
    for kind, one, other in PAIRS:
        found = agreed(other, [(0.99, one, "label")] * NEIGHBORS)
        stopped.setdefault(kind, []).append(found is None)
    for kind in ("number", "negation", "order"):
        assert all(stopped[kind]), kind
    assert agreed("same 1", [(0.9, "same 1", "x")] * NEIGHBORS) == (0.9, "x")


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
def test_every_field_of_a_request_is_in_the_key_or_listed(kind: type[Any]) -> None:
    base = chat() if kind is ChatRequest else CompletionRequest(id="x", prompts=("p",), sampling={})
    for field in kind.__struct_fields__:
        if field in WITHOUT_EFFECT:
            assert WITHOUT_EFFECT[field] and key(replace(base, **{field: EQUAL[field]})) == key(base), field
        else:
            assert key(replace(base, **{field: CHANGED[field]})) != key(base), field


def test_a_field_that_is_added_changes_the_key() -> None:
    newer = msgspec.defstruct(
        "ChatRequest", [("brand_new", int, 0)], bases=(ChatRequest,), kw_only=True, frozen=True
    )
    fields = {name: getattr(chat(), name) for name in ChatRequest.__struct_fields__}
    assert key(newer(**fields, brand_new=1)) != key(newer(**fields, brand_new=2))


def test_every_sampling_parameter_is_in_the_key() -> None:
    base = SamplingParams()
    for name in PARAMETERS:
        value = getattr(base, name)
        kind = PARAMETERS[name].kind
        other = {"switch": not value, "texts": ("x",), "ids": (1,), "biases": {1: 1.0}}.get(kind)
        if other is None:
            other = 0.25 if kind == "number" else 3 if kind == "integer" else True
        assert other != value, name
        first = {field: getattr(base, field) for field in SamplingParams.__struct_fields__}
        assert encode_value(tuple((first | {name: other}).items())) != encode_value(tuple(first.items()))


def test_every_part_of_a_message_is_in_the_key() -> None:
    base = Message("user", "x")
    changes: dict[str, Any] = {
        "role": "system",
        "content": None,
        "name": "n",
        "tool_calls": (ToolCall("1", "f", "{}"),),
        "tool_call_id": "1",
        "reasoning": "r",
        "images": (Image("http://x"),),
        "signature": "s",
    }
    assert changes.keys() == set(Message.__struct_fields__)
    keys = {key(chat(messages=(replace(base, **{name: value}),))) for name, value in changes.items()}
    assert len(keys | {key(chat(messages=(base,)))}) == len(changes) + 1


def test_identity_and_tenant_are_in_the_key() -> None:
    request = chat()
    params = with_defaults(SamplingParams(), request.sampling)
    keys = {
        key(request),
        key(request, name="n"),
        key(request, digest=b"e"),
        key(request, now="2026-11-24"),
        key_of(request, ModelIdentity(name="m", digest=b"d", params=params), b"other"),
    }
    assert len(keys) == 5


def test_values_of_other_types_have_other_bytes() -> None:
    values = [1, 1.0, True, "1", b"1", (1,), [1], {1: 1}, None, "", (), [], {}, ((1,),), {"a": {"b": 1}}]
    assert len({encode_value(one) for one in values}) == len(values)
    for value in values:
        again = decode_value(encode_value(value), {})
        assert again == value and type(again) is type(value)
    assert math.isnan(decode_value(encode_value(math.nan), {}))
    for bad in ({1}, object(), 2**70):
        with pytest.raises(NotEncodable):
            encode_value(bad)
    for data in (b"", b"\x93\x03\xa1A\x01", encode_value([1])[:-1], b"\xff" * 9, b"\x91\x05"):
        try:
            decode_value(data, {})
        except NotEncodable:
            continue
