"""How a text may try to get past a guard: writing, encoding, cuts, calls of tools."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_guards import WORDS, answered, chat, shown

from headrace.chat.messages import Message, ToolCall
from headrace.chat.tool_formats.events import Arguments, CallEnd, CallFailed, CallStart, Text
from headrace.errors import InvalidRequest
from headrace.inference.events import OutputFinished
from headrace.inference.requests import ChatRequest
from headrace.tasks.guards.input import ContentBlocked
from headrace.tasks.guards.readings import readings

GUARD: dict[str, object] = {"words": {"kind": "regex", "patterns": [r"(?i)blue\s*bird", r"\b4111 1111\b"]}}
LONG = "tell me of the blue bird at once"

ENCODED = base64.b64encode(LONG.encode()).decode()
WRITTEN = {
    "zero-width": "blue\u200bbi\u200drd",
    "soft hyphen": "blue\u00adbird",
    "joiner that is a mark": "blue\u034fbird",
    "blank of Hangul": "blue\u3164bird",
    "control character": "blue\x08bird",
    "deleted": "blue\x7fbi\x00rd",
    "variants": "blue\ufe0fbi\U000e0101rd",
    "letters in circles": "b\u20ddl\u20ddu\u20dde\u20dd bird",
    "tags": "".join(chr(0xE0000 + ord(one)) for one in "a blue bird"),
    "tags between": "blue\U000e0061bird",
    "full width": "\uff42\uff4c\uff55\uff45 bird",
    "mathematical": "\U0001d41b\U0001d425\U0001d42e\U0001d41e bird",
    "marks on letters": "b\u0308lue b\u0301ird",
    "circled": "\u24d1lue bird",
    "full-width digits": "\uff14\uff11\uff11\uff11 \uff11\uff11\uff11\uff11",
    "Arabic digits": "\u0664\u0661\u0661\u0661 \u0661\u0661\u0661\u0661",
    "base64": ENCODED,
    "base64 in lines": "\n".join(ENCODED[at : at + 20] for at in range(0, len(ENCODED), 20)),
    "base64 behind letters": "run/" + base64.urlsafe_b64encode(LONG.encode()).decode().rstrip("="),
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_ways_of_writing_are_seen_through(text: str) -> None:
    with pytest.raises(ContentBlocked, match="'words' blocks"):
        answered(GUARD, [], chat(f"so {text} it is"))
    events, _, _ = answered(GUARD, [Text("Yes. "), Text(f"So {text} it is.")])
    assert shown(events).partition(text.split("\n")[-1])[1] == ""  # of several lines the last completes it
    assert events[-1].reason == "content_filter"  # type: ignore


@settings(max_examples=40)
@given(st.text(max_size=80))
def test_readings_begin_with_the_text(text: str) -> None:
    found = readings(text)
    assert found[0] == text and len(found) <= 3
    if text.isascii() and text.isprintable() and len(text) < 14:
        assert found == [text]


@pytest.mark.parametrize("gap", ["\n", "\n\n", " \n "])
def test_sentences_do_not_hide_what_is_in_two(gap: str) -> None:
    events, _, _ = answered(GUARD, [Text("The blue" + gap), Text("bird is here. More.")])
    assert "bird" not in shown(events)
    assert events[-1].reason == "content_filter"  # type: ignore


def test_what_was_found_before_is_not_found_again() -> None:
    guard = {"words": WORDS | {"action": "flag"}}
    _, call, _ = answered(guard, [Text("A secret. It is fine. It is fine too.")])
    assert [one.label for one in call.verdicts] == ["WORDS"]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_patterns_with_blanks_are_redacted_across_lines(size: int) -> None:
    guard = {"words": {"kind": "regex", "patterns": [r"blue\s+bird"], "action": "redact", "on": ["output"]}}
    text = "One. The blue\nbird, a blue bird. Two."
    parts = [Text(text[at : at + size]) for at in range(0, len(text), size)]
    events, call, _ = answered(guard, parts)
    assert shown(events) == "One. The <WORDS_1>, a <WORDS_2>. Two."
    assert [one.action for one in call.verdicts] == ["redact"]


def call_parts(arguments: str, *, index: int = 0) -> list[Any]:
    pieces = [Arguments(index, arguments[at : at + 5]) for at in range(0, len(arguments), 5)]
    return [CallStart(index, "c1", "send"), *pieces, CallEnd(index)]


ESCAPED = '{"to": {"name": ["b\\u006cue", "\\u0062lue bird"]}}'


@pytest.mark.parametrize(
    "arguments", ['{"to": "blue bird"}', ESCAPED, '{"blue bird": 1}', '{"to": "blue bird']
)
def test_calls_are_checked_as_units(arguments: str) -> None:
    events, call, _ = answered(GUARD, call_parts(arguments))
    assert not [part for event in events for part in getattr(event, "parts", ())]
    assert [one.reason for one in events if isinstance(one, OutputFinished)] == ["content_filter"]
    assert call.verdicts[0].guard == "words"


def test_harmless_calls_pass_whole() -> None:
    wanted = '{"to": "a red bird"}'
    events, _, _ = answered(GUARD, [Text("Hi."), *call_parts(wanted)])
    parts = [part for event in events for part in getattr(event, "parts", ())]
    assert parts == [Text("Hi."), CallStart(0, "c1", "send"), Arguments(0, wanted), CallEnd(0)]


def test_calls_are_redacted_and_stay_json() -> None:
    guard = {"private": {"kind": "pii", "entities": ["CREDIT_CARD"], "action": "redact"}}
    events, call, _ = answered(guard, call_parts('{"card": 4111111111111111, "n": [7, null, true]}'))
    [arguments] = [p for event in events for p in getattr(event, "parts", ()) if isinstance(p, Arguments)]
    assert arguments.text == '{"card": "<CREDIT_CARD_1>", "n": [7, null, true]}'
    assert [one.action for one in call.verdicts] == ["redact"]


@pytest.mark.parametrize(
    "arguments", ['{"to": "blue bird", "to": "me"}', '{"a": [{"to": "bluebird", "to": 1}]}']
)
def test_a_key_that_is_there_twice_hides_no_value(arguments: str) -> None:
    events, call, _ = answered(GUARD, call_parts(arguments))
    assert not [part for event in events for part in getattr(event, "parts", ())]
    assert call.verdicts[0].guard == "words"


def redacted_call(arguments: str) -> str:
    guard = {"private": {"kind": "pii", "entities": ["EMAIL_ADDRESS"], "action": "redact"}}
    events, _, _ = answered(guard, call_parts(arguments))
    [found] = [p for event in events for p in getattr(event, "parts", ()) if isinstance(p, Arguments)]
    return found.text


def test_redacted_calls_keep_two_texts_apart() -> None:
    found = redacted_call('{"ann@x.org": 1, "bob@x.org": ["ann@x.org"]}')
    assert found == '{"<EMAIL_ADDRESS_1>": 1, "<EMAIL_ADDRESS_2>": ["<EMAIL_ADDRESS_1>"]}'
    assert redacted_call('{"to": "ann@x.org", "to": "me"}') == '{"to": "me"}'


def test_placeholders_of_a_request_tell_texts_apart() -> None:
    guard: dict[str, object] = {"private": {"kind": "pii", "action": "redact"}}
    given = (
        Message("user", "I am ann@x.org"),
        Message("assistant", "Hi", tool_calls=(ToolCall("c", "send", '{"to": "bob@x.org"}'),)),
        Message("user", "From ann@x.org to bob@x.org"),
    )
    _, _, inner = answered(guard, [], ChatRequest(id="r", messages=given))
    seen = inner.seen[0].messages  # type: ignore
    assert [one.content for one in seen] == [
        "I am <EMAIL_ADDRESS_1>",
        "Hi",
        "From <EMAIL_ADDRESS_1> to <EMAIL_ADDRESS_2>",
    ]
    assert seen[1].tool_calls[0].arguments == '{"to": "<EMAIL_ADDRESS_2>"}'


def test_names_of_calls_are_redacted_as_the_verdict_says() -> None:
    guard: dict[str, object] = {"private": {"kind": "pii", "action": "redact"}}
    message = Message("assistant", None, tool_calls=(ToolCall("c", "bob@x.org", "{}"),))
    _, call, inner = answered(guard, [], ChatRequest(id="r", messages=(Message("user", "x"), message)))
    assert [one.label for one in call.verdicts] == ["EMAIL_ADDRESS"]
    assert inner.seen[0].messages[1].tool_calls[0].name == "<EMAIL_ADDRESS_1>"  # type: ignore


def test_words_before_encoded_text_do_not_hide_it() -> None:
    words = " ".join(f"{place:04}letters_and_more" for place in range(500))
    with pytest.raises(ContentBlocked, match="'words' blocks"):
        answered(GUARD, [], chat(f"{words} {ENCODED}"))


def test_a_call_that_failed_is_read_as_text() -> None:
    parts: list[Any] = [CallStart(0, "c1", "send"), Arguments(0, "{"), CallFailed(0), Text("the blue bird")]
    events, _, _ = answered(GUARD, parts)
    assert shown(events) == "" and events[-1].reason == "content_filter"  # type: ignore


def test_calls_and_reasoning_of_earlier_messages_are_read() -> None:
    for message in (
        Message("assistant", None, tool_calls=(ToolCall("c", "send", '{"to": "blue bird"}'),)),
        Message("assistant", "x", reasoning="the blue bird"),
        Message("tool", "the blue bird", tool_call_id="c"),
    ):
        with pytest.raises(InvalidRequest, match="'words' blocks"):
            answered(GUARD, [], ChatRequest(id="r", messages=(Message("user", "x"), message)))
