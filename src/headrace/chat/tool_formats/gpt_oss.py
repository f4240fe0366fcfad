"""gpt-oss: the harmony format. The whole answer is messages on channels, and a call is one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from headrace.chat.tool_formats.events import OutputEvents
from headrace.chat.tool_formats.format import call_grammar, openai_id
from headrace.chat.tool_formats.lark import Lark
from headrace.chat.tool_formats.reader import Malformed, Reader, Steps
from headrace.chat.tool_formats.values import read_arguments
from headrace.chat.tools import Tool, ToolUse

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_NEXT = (*_ENDS, _START, _CHANNEL)
_RECIPIENT = re.compile(r"to=functions\.([A-Za-z0-9_-]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*([a-z]+)")
ANALYSIS = (f"{_CHANNEL}analysis{_MESSAGE}", _ENDS[0])
"""Markers around reasoning."""
FINAL = f"{_CHANNEL}final{_MESSAGE}"
"""Markers before the answer."""


class Harmony(Struct, frozen=True):
    """`<|start|>assistant<|channel|>NAME<|message|>…<|end|>`; the prompt ends in the first header.

    Channel `analysis` is reasoning, `final` and `commentary` are text, `to=functions.NAME` is a call.
    """

    name: str = "gpt_oss"
    template_marks: tuple[str, ...] = (_CHANNEL, "analysis")
    new_id: Callable[[str], str] = openai_id

    @property
    def marks(self) -> tuple[str, ...]:
        """All markers that may be special tokens."""
        return (_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS)

    def read(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        """Parse an answer. Text that does not begin as a message is an answer by itself."""
        mark = ""
        while mark or (yield from reader.peek()):
            reader.record()
            try:
                if mark or (yield from reader.followed_by(_START, _CHANNEL, "to=")):
                    mark = yield from self._message(reader, output, mark)
                else:
                    mark = yield from self._body(reader, output)
            except Malformed:
                output.thinking = False
                output.fail(mark + reader.recorded())
                mark = ""

    def _message(self, reader: Reader, output: OutputEvents, mark: str) -> Steps[str]:
        """Parse a message whose header begins with `mark`; returns the next header's marker, if consumed."""
        header = [mark]
        if not (yield from reader.until((_MESSAGE,), header.append)):
            raise Malformed
        text = "".join(header)
        recipient, channel = _RECIPIENT.search(text), _CHANNEL_NAME.search(text)
        output.section()
        if recipient is None:
            output.thinking = channel is not None and channel[1] == "analysis"
            return (yield from self._body(reader, output))
        if recipient[1] not in output.tools:
            raise Malformed
        output.start(recipient[1])
        yield from read_arguments(reader, output.arguments)
        output.end()
        yield from reader.space()
        yield from reader.literal(*_ENDS)
        return ""

    def _body(self, reader: Reader, output: OutputEvents) -> Steps[str]:
        mark = yield from reader.until(_NEXT, output.reasoning if output.thinking else output.text)
        output.thinking = False
        return "" if mark in _ENDS else mark

    def closing(self, *, calls: bool) -> str:
        """The end of a reasoning message: with `calls` any message may follow, otherwise the answer."""
        return f"{_ENDS[0]}{_START}assistant" + ("" if calls else FINAL)

    def grammar(self, lark: Lark, use: ToolUse) -> str:
        """One call, after optional reasoning."""
        return f"({self._said(lark, 'analysis')})? {self._calls(lark, use)}"

    def lazy_grammar(self, lark: Lark, use: ToolUse) -> str:
        """Messages; those to a function match it."""
        said = lark.any_of(self._said(lark, channel) for channel in ("analysis", "commentary"))
        final = f"{lark.text(FINAL)} {lark.free()}"
        return f"({said})* ({self._calls(lark, use)} | {final})"

    def _said(self, lark: Lark, channel: str) -> str:
        """A message to the user or to the model itself, and the start of the next."""
        header = lark.text(_CHANNEL + channel + _MESSAGE)
        return f"{header} {lark.up_to(_ENDS[0])} {lark.text(_START + 'assistant')}"

    def _calls(self, lark: Lark, use: ToolUse) -> str:
        return lark.any_of(call_grammar(_CALL, lark, tool, tool.parameters) for tool in use.callable)


class _Call(Struct, frozen=True):
    """A message to a function."""

    marks: tuple[str, ...] = ()
    by_argument: bool = False

    def read(self, reader: Reader, output: OutputEvents) -> Steps[None]:
        """Messages are read by `Harmony`."""
        raise NotImplementedError

    def grammar(self, lark: Lark, tool: Tool, schema: Mapping[str, Any], before: str = "") -> str:
        """The header and the arguments."""
        return f"{lark.text(before + self.beginning(tool))} {lark.json(schema)}"

    def beginning(self, tool: Tool) -> str:
        """The header."""
        return f"{_CHANNEL}commentary to=functions.{tool.name} <|constrain|>json{_MESSAGE}"


_CALL = _Call()
GPT_OSS = Harmony()
