"""The parts of an answer as content blocks, streamed or whole."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import groupby

from msgspec import Raw

from headrace.api.anthropic.schema import (
    Block,
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    Delta,
    InputDelta,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from headrace.chat.tool_formats.events import (
    AnswerEvent,
    Arguments,
    CallEnd,
    CallFailed,
    CallStart,
    Reasoning,
    Text,
)

_BARE = (CallStart, CallEnd, CallFailed)  # events without text


class BlockStream:
    """Turns the parts of an answer into events of content blocks, one block open at a time.

    With `hide_thinking`, blocks of thinking have a signature and no text.
    """

    def __init__(self, *, hide_thinking: bool = False) -> None:
        self._hide_thinking = hide_thinking
        self._index = -1
        self._open: type[Block] | None = None
        self._thought, self._signature = hashlib.sha256(), ""

    def feed(self, events: Sequence[AnswerEvent]) -> list[BlockEvent]:
        """More of the answer."""
        found: list[BlockEvent] = []
        for event in events:
            match event:
                case Text(text):
                    found += self._opened(TextBlock(""))
                    found.append(self._grown(TextDelta(text)))
                case Reasoning(text, signature):
                    found += self._opened(ThinkingBlock("", ""))
                    self._thought.update(text.encode())
                    self._signature = signature or self._signature
                    if text and not self._hide_thinking:
                        found.append(self._grown(ThinkingDelta(text)))
                case CallStart(_, call_id, name):
                    found += self.close()
                    found += self._opened(ToolUseBlock(call_id, name, Raw("{}")))
                case Arguments(_, text):
                    found.append(self._grown(InputDelta(text)))
                case CallEnd() | CallFailed():
                    found += self.close()
        return found

    def close(self) -> list[BlockEvent]:
        """Close the block that is open."""
        found: list[BlockEvent] = []
        if self._open is ThinkingBlock:
            found.append(self._grown(SignatureDelta(self._signature or self._thought.hexdigest())))
        if self._open is not None:
            found.append(BlockStop(self._index))
        self._open = None
        return found

    def _opened(self, block: Block) -> list[BlockEvent]:
        if self._open is type(block):
            return []
        found = self.close()
        self._index += 1
        self._open = type(block)
        if self._open is ThinkingBlock:
            self._thought, self._signature = hashlib.sha256(), ""
        return [*found, BlockStart(self._index, block)]

    def _grown(self, delta: Delta) -> BlockDelta:
        return BlockDelta(self._index, delta)


def whole_blocks(
    events: Sequence[AnswerEvent], *, hide_thinking: bool = False
) -> tuple[list[Block], str | None]:
    """The blocks of a whole answer, and the name of the tool whose call was cut short and has no input."""
    failed = {event.index for event in events if isinstance(event, CallFailed)}
    kept = [event for event in events if isinstance(event, Text | Reasoning) or event.index not in failed]
    blocks: list[Block] = []
    cut: str | None = None
    for _, run in groupby(kept, _block_of):
        first, *more = run
        text = "".join(event.text for event in (first, *more) if not isinstance(event, _BARE))
        match first:
            case Text():
                blocks.append(TextBlock(text))
            case Reasoning():
                signed = [one.signature for one in (first, *more) if isinstance(one, Reasoning)]
                signature = "".join(signed) or hashlib.sha256(text.encode()).hexdigest()
                blocks.append(ThinkingBlock("" if hide_thinking else text, signature))
            case CallStart(_, call_id, name):
                complete = isinstance(more[-1], CallEnd) if more else False
                cut = cut if complete else name
                blocks.append(ToolUseBlock(call_id, name, Raw(text if complete else "{}")))
            case _:
                raise AssertionError("a call begins with its name")
    return blocks, cut


def _block_of(event: AnswerEvent) -> type[AnswerEvent] | int:
    """A key that adjacent parts of one block share."""
    return type(event) if isinstance(event, Text | Reasoning) else event.index
