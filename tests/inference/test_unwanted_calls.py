"""Marks of tool calls are not sampled where no tool can be called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.chat.messages import Message
from headrace.chat.tool_formats.hermes import HERMES
from headrace.chat.tool_formats.registry import FAMILIES
from headrace.chat.tools import Tool, ToolUse
from headrace.engine.request import EngineRequest
from headrace.inference.accounts import Account, KeyLimits
from headrace.inference.call_context import CallContext
from headrace.inference.preparation import prepare_request
from headrace.inference.requests import ChatRequest
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from tiny import Running

MARK = "<|tool|>"
ASK = (Message("user", "list all files"),)
WEATHER = Tool("weather", "", {"type": "object", "properties": {}}, False)


@pytest.fixture(scope="module")
def mini() -> Iterator[LoadedModel]:
    model = load_model("mini", EngineOptions())
    yield model
    model.close()


@pytest.fixture(autouse=True)
def own_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """A format whose mark is a special token of the bundled model."""
    monkeypatch.setitem(FAMILIES, "own", replace(HERMES, name="own", opens=(MARK,)))


def prepared(model: LoadedModel, tool_format: str | None = None, **more: Any) -> EngineRequest:
    sampling = {"temperature": 0.0, "max_tokens": 12, **more.pop("sampling", {})}
    request = ChatRequest(id="a", messages=ASK, sampling=sampling, tool_format=tool_format, **more)
    [one] = prepare_request(
        request, model, CallContext(request_id="a", account=Account("a", KeyLimits())), None
    ).requests
    return one


def test_marks_are_ruled_out_without_tools(mini: LoadedModel) -> None:
    mark = mini.tokenizer.id_of(MARK)
    assert prepared(mini, "own").params.logit_bias == {mark: -100.0}
    tools = ToolUse((WEATHER,), (WEATHER,), "auto", True)
    assert prepared(mini, "own", tools=tools).params.logit_bias == {}
    own = mini.tokenizer.id_of("<tool_call>")
    assert own is not None and own not in mini.tokenizer.pieces.special_ids
    assert prepared(mini).params.logit_bias == {own: -100.0}
    chosen = {mark: 100.0}
    assert prepared(mini, "own", sampling={"logit_bias": chosen}).params.logit_bias == chosen
    assert prepared(mini, "own", sampling={"allowed_token_ids": (mark,)}).params.logit_bias == {}
    assert prepared(mini, "own", sampling={"use_beam_search": True, "n": 2}).params.logit_bias == {}


def test_answers_without_marks_stay_the_same(mini: LoadedModel) -> None:
    plain, without = (Running(mini.engine, prepared(mini, name)).finish() for name in (None, "own"))
    assert plain.tokens[0] == without.tokens[0]
