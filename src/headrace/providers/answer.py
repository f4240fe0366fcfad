"""The answer of a remote model as it arrives: whatever a provider sends, what comes out is well-formed.

Parts of a choice come in order, calls are whole and follow one another, every choice ends once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct, field

from headrace.chat.tool_formats.events import AnswerEvent, Arguments, CallEnd, CallStart, Reasoning, Text
from headrace.chat.tool_formats.format import openai_id
from headrace.chat.tools import ToolUse
from headrace.engine.request import FinishReason
from headrace.inference.events import OutputDelta, OutputFinished, TokenText

MAX_CALLS = 128
MAX_PIECES = 2**18
"""Of the arguments of a call, and of an answer that is held until it is whole: a piece takes much more memory
than the character that it may be, and models write fewer tokens."""
_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT_REASONS: dict[str, FinishReason] = {"length": "length"}


class MalformedAnswer(Exception):
    """What the provider sent is no answer; the message goes on from "the target ..."."""


class UnusableAnswer(MalformedAnswer):
    """The provider's API was kept and the model has not done what the request asked for."""


class _Call(Struct):
    key: object
    id: str
    name: str = ""
    is_announced: bool = False
    is_dropped: bool = False
    arguments: list[str] = field(default_factory=list[str])


class _Choice(Struct):
    parts: list[AnswerEvent] = field(default_factory=list[AnswerEvent])
    logprobs: list[TokenText] = field(default_factory=list[TokenText])
    call: _Call | None = None
    keys: set[object] = field(default_factory=set[object])
    ids: set[str] = field(default_factory=set[str])
    calls: int = 0
    reason: str | None = None
    stop: str | int | None = None


class Answer:
    """Collects what a dialect reads. `warn` gets a parameter and a message.

    `text_characters` and `reasoning_characters` count what has arrived; `has_content` is True from the first
    text, reasoning or call on.
    """

    def __init__(self, choices: int, use: ToolUse | None, warn: Callable[[str, str], None]) -> None:
        self._choices = [_Choice() for _ in range(choices)]
        self._tools = {tool.name for tool in use.callable} if use is not None else set[str]()
        self._parallel = use is None or use.parallel
        self._warn = warn
        self.text_characters = self.reasoning_characters = 0
        self.has_content = False

    def text(self, choice: int, text: str) -> None:
        """More text."""
        self._open(choice).parts.append(Text(text))
        self.text_characters += len(text)
        self.has_content = True

    def reasoning(self, choice: int, text: str, signature: str = "") -> None:
        """More reasoning; a signature is the provider's and comes at the end of a block of it."""
        self._open(choice).parts.append(Reasoning(text, signature))
        self.reasoning_characters += len(text)
        self.has_content = True

    def call(self, choice: int, key: object, call_id: str | None = None, name: str | None = None) -> None:
        """A call begins, or its name becomes known. `key` tells calls of a choice apart; a new id under an
        old key is another call, for some servers number all calls 0."""
        state = self._open(choice)
        call = state.call
        if call is None or call.key != key or (call_id and call.is_announced and call_id != call.id and name):
            self._end_call(state, complete=True)
            if key in state.keys and (call is None or call.key != key):
                raise MalformedAnswer("went back to a call that it had ended")
            if state.calls >= MAX_CALLS:
                raise MalformedAnswer(f"made more than {MAX_CALLS} calls")
            state.keys.add(key)
            call = state.call = _Call(key, call_id or openai_id())
            state.calls += 1
        if call_id and not call.is_announced:
            call.id = call_id
        if name and not call.is_announced:
            self._announce(state, call, name)

    def _announce(self, state: _Choice, call: _Call, name: str) -> None:
        if name not in self._tools:
            raise UnusableAnswer(f"called {name[:80]!r}, which was not offered")
        call.name, call.is_announced = name, True
        call.is_dropped = not self._parallel and state.calls > 1
        if call.is_dropped:
            self._warn("parallel_tool_calls", "the target made several calls: only the first is passed on")
            return
        given = call.id
        if given in state.ids:  # the caller that answers could not tell them apart
            given = openai_id()
            self._warn("tool_calls", "the target gave two calls one id: the later one has another")
        state.ids.add(given)
        state.parts.append(CallStart(state.calls - 1, given, name))
        self.has_content = True
        if call.arguments:  # that came before the name
            state.parts.append(Arguments(state.calls - 1, "".join(call.arguments)))

    def arguments(self, choice: int, key: object, text: str) -> None:
        """More of a call's arguments, which are JSON."""
        state = self._open(choice)
        call = state.call
        if call is None or call.key != key:
            raise MalformedAnswer("sent arguments of a call that has not begun or has ended")
        if len(call.arguments) >= MAX_PIECES:
            raise MalformedAnswer(f"sent the arguments of a call in more than {MAX_PIECES:,} pieces")
        call.arguments.append(text)
        self.text_characters += len(text)
        if call.is_announced and not call.is_dropped:
            state.parts.append(Arguments(state.calls - 1, text))

    def end_call(self, choice: int) -> None:
        """The provider says that the open call has ended: where its arguments are whole it is complete, else
        the reason of the end tells whether it was cut off."""
        state = self._open(choice)
        if state.call is not None and _is_object("".join(state.call.arguments)):
            self._end_call(state, complete=True)

    def _end_call(self, state: _Choice, *, complete: bool) -> None:
        call, state.call = state.call, None
        if call is None:
            return
        if not call.is_announced:
            raise MalformedAnswer("made a call without a name")
        text = "".join(call.arguments)
        if call.is_dropped or (not complete and not _is_object(text)):
            return  # what was cut off stays partial
        if not text.strip():
            state.parts.append(Arguments(state.calls - 1, "{}"))
        elif not _is_object(text):
            raise UnusableAnswer(f"called {call.name!r} with arguments that are no JSON object")
        state.parts.append(CallEnd(state.calls - 1))

    def logprobs(self, choice: int, tokens: Sequence[TokenText]) -> None:
        """Log probabilities of the tokens behind what arrives."""
        self._open(choice).logprobs += tokens

    def finish(self, choice: int, reason: str, stop: str | int | None = None) -> None:
        """A choice is complete: nothing more of it may come. `reason` is one of OpenAI's."""
        state = self._open(choice)
        self._end_call(state, complete=reason != "length")
        if state.calls and reason == "stop":
            reason = "tool_calls"
        elif not state.calls and reason == "tool_calls":
            reason = "stop"
        state.reason, state.stop = reason, stop

    @property
    def is_finished(self) -> bool:
        """Whether every choice is complete."""
        return all(state.reason is not None for state in self._choices)

    def take(self) -> list[OutputDelta]:
        """What has arrived since the last call."""
        found: list[OutputDelta] = []
        for index, state in enumerate(self._choices):
            if state.parts or state.logprobs:
                found.append(OutputDelta(index, tuple(state.parts), (), tuple(state.logprobs)))
                state.parts, state.logprobs = [], []
        return found

    def ended(self, reasoning_tokens: int) -> list[OutputFinished]:
        """The ends of all choices; the first one has the tokens of reasoning of all."""
        return [
            OutputFinished(
                *(index, (), state.reason or "stop", _TEXT_REASONS.get(state.reason or "", "stop")),
                stop=state.stop,
                reasoning_tokens=reasoning_tokens if index == 0 else 0,
            )
            for index, state in enumerate(self._choices)
        ]

    def _open(self, choice: int) -> _Choice:
        if not 0 <= choice < len(self._choices):
            raise MalformedAnswer(f"sent choice {choice}, {len(self._choices)} were asked for")
        state = self._choices[choice]
        if state.reason is not None:
            raise MalformedAnswer("sent more of a choice after its finish reason")
        return state


def _is_object(text: str) -> bool:
    try:
        _arguments.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
