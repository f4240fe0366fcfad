"""An answer as it is kept: its batches of events, its warnings, and what of it others are compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from headrace.chat.tool_formats.events import (
    Arguments,
    CallEnd,
    CallFailed,
    CallStart,
    Reasoning,
    Text,
)
from headrace.engine.request import Selection, Timing, Usage
from headrace.gateway.typed_values import NotEncodable, decode_value, encode_value
from headrace.inference.events import (
    ChoicesRanked,
    OutputDelta,
    OutputFinished,
    ParameterWarning,
    Prepared,
    PreparedPrompt,
    PromptFinished,
    PromptScored,
    Started,
    TokenText,
)
from headrace.inference.handler import Batch
from headrace.sampling.params import SamplingParams


class AnswerRecord(Struct, frozen=True):
    """All batches of an answer, the first one with `Prepared` alone, and the warnings of its making.
    `question` is what near ones are compared with, "" where that is never done."""

    batches: tuple[tuple[Any, ...], ...]
    warnings: tuple[ParameterWarning, ...] = ()
    question: str = ""


_TYPES: dict[str, type[Struct]] = {
    kind.__name__: kind
    for kind in (
        *(AnswerRecord, Prepared, PreparedPrompt, SamplingParams, Started, PromptScored, OutputDelta),
        *(OutputFinished, ChoicesRanked, Selection, PromptFinished, Usage, Timing, TokenText, Text),
        *(Reasoning, CallStart, Arguments, CallEnd, CallFailed, ParameterWarning),
    )
}


def packed(batches: Sequence[Batch], warnings: Sequence[ParameterWarning], question: str = "") -> bytes:
    """The bytes of an answer. Raises NotEncodable."""
    return encode_value(AnswerRecord(tuple(map(tuple, batches)), tuple(warnings), question))


def unpacked(body: bytes, digest: bytes) -> AnswerRecord:
    """The answer of bytes whose digest was kept apart. Raises NotEncodable where they have changed."""
    if digest_of(body) != digest:
        raise NotEncodable("a kept answer is damaged")
    found = decode_value(body, _TYPES)
    if not isinstance(found, AnswerRecord) or not found.batches or len(found.batches[0]) != 1:
        raise NotEncodable("a kept answer is no answer")
    return found


def digest_of(body: bytes) -> bytes:
    """What damage is found by."""
    return hashlib.blake2b(body, digest_size=16).digest()


def content_of(batches: Sequence[Batch]) -> object:
    """What two answers to the same request must have in common: of every choice tokens, parts and end.

    Batches may be cut otherwise, ids of calls are drawn, and log probabilities follow from the tokens.
    """
    choices: dict[int, list[Any]] = {}
    for event in (event for batch in batches for event in batch):
        if not isinstance(event, OutputDelta | OutputFinished):
            continue
        tokens, parts, end = choices.setdefault(event.choice, [[], [], []])
        if isinstance(event, OutputDelta):
            tokens += event.tokens
        else:
            end += [event.reason, event.stop]
        for part in event.parts:
            _join(parts, part)
    return choices


def _join(parts: list[list[Any]], part: object) -> None:
    """Add a part; texts that follow one another are one."""
    if isinstance(part, CallStart):
        parts.append([type(part), part.index, part.name])
        return
    kind: object = type(part)
    index, text = getattr(part, "index", None), getattr(part, "text", "")
    if parts and parts[-1][:2] == [kind, index] and kind in (Text, Reasoning, Arguments):
        parts[-1][2] += text
    elif text or kind not in (Text, Reasoning, Arguments):
        parts.append([kind, index, text])


def text_of(batches: Sequence[Batch], choice: int = 0) -> str | None:
    """The text of a choice; None where it has calls, or none."""
    found: list[str] = []
    for event in (event for batch in batches for event in batch):
        if isinstance(event, OutputDelta | OutputFinished) and event.choice == choice:
            for part in event.parts:
                if isinstance(part, Text):
                    found.append(part.text)
                elif not isinstance(part, Reasoning):
                    return None
    return "".join(found) or None


def tokens_of(batches: Sequence[Batch]) -> int:
    """Tokens of prompts and answers."""
    usages = [event.usage for batch in batches for event in batch if isinstance(event, PromptFinished)]
    return sum(one.prompt_tokens + one.completion_tokens for one in usages)
