"""What an answer is made of, as it is read: text, reasoning, calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from headrace.chat.tools import Tool


class Text(Struct, frozen=True):
    """More of what is said to the user."""

    text: str


class Reasoning(Struct, frozen=True):
    """More of what the model thinks."""

    text: str


class CallStart(Struct, frozen=True):
    """A call begins; its arguments follow. `index` counts the calls of an answer."""

    index: int
    id: str
    name: str


class Arguments(Struct, frozen=True):
    """More of a call's arguments: all of them together are a JSON object."""

    index: int
    text: str


class CallEnd(Struct, frozen=True):
    """A call is complete."""

    index: int


class CallFailed(Struct, frozen=True):
    """A call that had begun is malformed: it is none, and what the model wrote follows as Text."""

    index: int


AnswerEvent = Text | Reasoning | CallStart | Arguments | CallEnd | CallFailed


class OutputEvents:
    """Gathers the events of an answer.

    White space around calls and around reasoning belongs to the syntax, not to the text: it is held back
    until what follows is known.
    """

    def __init__(self, tools: Sequence[Tool], new_id: Callable[[], str], *, parallel: bool = True) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._new_id = new_id
        self._parallel = parallel
        self._events: list[AnswerEvent] = []
        self._space = ""  # held back
        self._fresh = True  # nothing but white space since the start, the reasoning or a call
        self._before_call = ("", True)  # those two
        self._index = -1
        self._complete = 0
        self.calling = False
        self.thinking = False
        self.cut = False

    def take(self) -> list[AnswerEvent]:
        """The events since the last time, neighbors joined."""
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
        """Text of another kind begins: white space before it is dropped, and after it."""
        self._space, self._fresh = "", True

    def start(self, name: str) -> None:
        """A call of a tool begins."""
        self._index += 1
        self.calling = True
        if self._visible:
            self._before_call = (self._space, self._fresh)
            self.section()
            self._events.append(CallStart(self._index, self._new_id(), name))

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
        """What was read as a call is none. One that was cut short stays as far as it came."""
        if self.calling and self.cut:
            self.calling = False
            return
        if self.calling and self._visible:
            self._events.append(CallFailed(self._index))
            self._space, self._fresh = self._before_call
        self.calling = False
        self.text(raw)

    def finish(self) -> None:
        """The text is at its end: white space held back was part of it, unless it followed a call."""
        if self._space and not self._fresh:
            self._events.append(Text(self._space))

    @property
    def _visible(self) -> bool:
        """Whether the call under way is shown: where one is wanted, those after it are not."""
        return self._parallel or self._complete == 0

    def _trimmed(self, text: str) -> str:
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        return shown
