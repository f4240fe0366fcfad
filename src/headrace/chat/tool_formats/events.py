"""Events of a parsed answer: text, reasoning, tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from headrace.chat.tools import Tool


class Text(Struct, frozen=True):
    """More text for the user."""

    text: str


class Reasoning(Struct, frozen=True):
    """More text of the reasoning. A remote model may sign a block of it; `signature` comes at its end, with
    an empty text."""

    text: str
    signature: str = ""


class CallStart(Struct, frozen=True):
    """A tool call begins; its arguments follow. `index` counts the calls of an answer."""

    index: int
    id: str
    name: str


class Arguments(Struct, frozen=True):
    """A fragment of a call's arguments; all fragments together are a JSON object."""

    index: int
    text: str


class CallEnd(Struct, frozen=True):
    """A call is complete."""

    index: int


class CallFailed(Struct, frozen=True):
    """A call that was announced is malformed: discard it. The raw output follows as Text."""

    index: int


AnswerEvent = Text | Reasoning | CallStart | Arguments | CallEnd | CallFailed


class OutputEvents:
    """Collects the events of an answer.

    White space around calls and reasoning belongs to the syntax, not to the text: it is held back until the
    following text is known.
    """

    def __init__(
        self, tools: Sequence[Tool], new_id: Callable[[str], str], origin: str = "", *, parallel: bool = True
    ) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._new_id, self._origin = new_id, origin
        self._parallel = parallel
        self._events: list[AnswerEvent] = []
        self._space = ""  # white space held back
        self._fresh = True  # only white space since the start, the reasoning or a call
        self._before_call = ("", True)  # _space and _fresh before the current call
        self._index = -1
        self._complete = 0
        self.calling = False
        self.thinking = False
        self.cut = False

    def take(self) -> list[AnswerEvent]:
        """The events since the last call; adjacent ones of one kind are merged."""
        events, self._events = self._events, []
        joined: list[AnswerEvent] = []
        for event in events:
            last = joined[-1] if joined else None
            if isinstance(event, Text) and isinstance(last, Text):
                joined[-1] = Text(last.text + event.text)
            elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
                joined[-1] = Reasoning(last.text + event.text)
            elif isinstance(event, Arguments) and isinstance(last, Arguments) and event.index == last.index:
                joined[-1] = Arguments(event.index, last.text + event.text)
            else:
                joined.append(event)
        return joined

    def text(self, text: str) -> None:
        """Text for the user."""
        shown = self._trimmed(text)
        if shown:
            self._events.append(Text(shown))

    def reasoning(self, text: str) -> None:
        """Text of the reasoning."""
        shown = self._trimmed(text)
        if shown:
            self._events.append(Reasoning(shown))

    def section(self) -> None:
        """Start a section of another kind: drops white space before and after."""
        self._space, self._fresh = "", True

    def start(self, name: str) -> None:
        """A tool call begins."""
        self._index += 1
        self.calling = True
        if self._visible:
            self._before_call = (self._space, self._fresh)
            self.section()
            origin = f"{self._origin}/{self._index}" if self._origin else ""
            self._events.append(CallStart(self._index, self._new_id(origin), name))

    def arguments(self, text: str) -> None:
        """JSON text of the arguments."""
        if self._visible:
            self._events.append(Arguments(self._index, text))

    def end(self) -> None:
        """The call is complete."""
        self.calling = False
        if self._visible:
            self._events.append(CallEnd(self._index))
        self._complete += 1

    def fail(self, raw: str) -> None:
        """The current call is malformed: emit `raw` as text; a call that was cut off stays partial."""
        if self.calling and self.cut:
            self.calling = False
            return
        if self.calling and self._visible:
            self._events.append(CallFailed(self._index))
            self._space, self._fresh = self._before_call
        self.calling = False
        self.text(raw)

    def finish(self) -> None:
        """End of the text: white space held back is part of it, unless it follows a call."""
        if self._space and not self._fresh:
            self._events.append(Text(self._space))

    @property
    def _visible(self) -> bool:
        """True if the current call is emitted: without parallel calls only the first is."""
        return self._parallel or self._complete == 0

    def _trimmed(self, text: str) -> str:
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        return shown
