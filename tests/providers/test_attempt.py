"""One attempt at one target: what it sends, what it makes of the stream, how it fails."""

from __future__ import annotations

import pytest
from asking import ask, chat, text_of
from fake_provider import delta, fail, running_provider, say, usage

from headrace.errors import HeadraceError
from headrace.inference.events import OutputFinished, PromptFinished


def test_a_stream_becomes_events() -> None:
    with running_provider() as provider:
        found, call = ask(provider, chat(sampling={"temperature": 0.5, "max_tokens": 9}))
    assert text_of(found) == "Hello"
    [ended] = [event for event in found if isinstance(event, OutputFinished)]
    [finished] = [event for event in found if isinstance(event, PromptFinished)]
    assert ended.reason == "stop" and found[-1] is finished
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (5, 3)
    [exchange] = provider.exchanges
    assert exchange.headers["authorization"] == "Bearer secret-key"
    assert exchange.body == {
        "model": "far-1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "max_tokens": 9,
    }
    assert not call.warnings


def test_warnings_of_another_headrace_are_the_callers_too() -> None:
    told = [{"param": "messages[0]", "message": "has no effect"}] * 2
    chunk, more = (
        delta(content="Hi") | {"warnings": told},
        [{"param": str(n), "message": "x"} for n in range(99)],
    )
    foreign = delta() | {"warnings": ["words of another kind"]}
    with running_provider(
        say(chunk, foreign, delta(finish="stop") | {"warnings": more}, usage())
    ) as provider:
        found, call = ask(provider, chat())
    assert text_of(found) == "Hi"
    assert (call.warnings[0].param, call.warnings[0].message) == (
        "messages[0]",
        "the target says: has no effect",
    )
    assert len(call.warnings) == 16 == len(set(call.warnings)), "each once, and not without end"


def test_errors_are_typed_and_name_the_target() -> None:
    with running_provider(fail(429, retry_after="7")) as provider, pytest.raises(HeadraceError) as caught:
        ask(provider, chat())
    assert caught.value.status == 429 and "'far'" in caught.value.message
    assert getattr(caught.value, "retry_after_s", 0) == 7
