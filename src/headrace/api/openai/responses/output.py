"""A response as it is made: from inference events to output items, and to the events of its stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct, field

from headrace.api.openai.logprobs import chat_logprobs
from headrace.api.openai.responses.annotations import file_citations
from headrace.api.openai.responses.items import (
    FILE_SEARCH,
    OWN_LABEL,
    FileSearchCall,
    FileSearchResult,
    FunctionCall,
    ItemStatus,
    McpApprovalRequest,
    McpCall,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ToolFailure,
    item_id,
)
from headrace.api.openai.responses.schema import (
    IncompleteDetails,
    ResponseEvent,
    ResponseFailure,
    ResponseInputDetails,
    ResponseObject,
    ResponseOutputDetails,
    ResponseUsage,
    Status,
)
from headrace.api.openai.schema import ContentLogprob
from headrace.chat.tool_formats.events import (
    AnswerEvent,
    Arguments,
    CallEnd,
    CallFailed,
    CallStart,
    Reasoning,
    Text,
)
from headrace.errors import HeadraceError
from headrace.inference.call_context import derived_id
from headrace.inference.events import (
    ApprovalWanted,
    InferenceEvent,
    OutputDelta,
    OutputFinished,
    PromptFinished,
    TokenText,
    ToolCalled,
    ToolReturned,
)
from headrace.inference.response_store import UNFINISHED
from headrace.struct_types import thread_safe


class _Query(Struct):
    query: str


class OpenItem(Struct):
    """The item that is being made."""

    item: OutputItem
    index: int
    text: list[str] = field(default_factory=list[str])
    logprobs: list[ContentLogprob] = field(default_factory=list[ContentLogprob])


class ResponseAnswer:
    """Fills `response` from the events of its one choice, and passes each event of its stream to `emit`.

    Items follow one another: the next begins when the one before it is complete. A call that turns out to be
    none is closed as incomplete in the stream and is no part of the output; its text follows as a message.
    """

    def __init__(
        self,
        response: ResponseObject,
        emit: Callable[[ResponseEvent], None],
        *,
        logprobs: bool = False,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        self.response, self._time_s = response, time_s
        self._emit = emit
        self._shows_logprobs = logprobs
        self._reasoning_tokens = 0
        self._number = self._ids = 0
        self._items = 0
        self._open: OpenItem | None = None
        self._logprobs: list[TokenText] = []  # of tokens whose text has not come out yet
        self._reason: str | None = None
        self._why = "max_output_tokens"
        self._passages: list[FileSearchResult] = []  # that the model has read
        self._calls: dict[str, tuple[McpCall | FileSearchCall, int]] = {}  # that run, of this server's tools

    def announce(self) -> None:
        """The response exists, and waits where it is queued."""
        self._event("response.created", response=self.response)
        if self.response.status == "queued":
            self._event("response.queued", response=self.response)
        else:
            self._event("response.in_progress", response=self.response)

    def take(self, events: Sequence[InferenceEvent]) -> None:
        """A batch of events, in order."""
        self._begin()
        for event in events:
            if isinstance(event, OutputDelta):
                self._logprobs += event.logprobs
                self._shape(event.parts)
            elif isinstance(event, OutputFinished) and event.text_reason != "cancelled":
                is_filtered = event.reason == "content_filter"
                self._reason = "content_filter" if is_filtered else event.text_reason
                self._why = event.reason if event.reason != "length" else "max_output_tokens"
                self._reasoning_tokens = event.reasoning_tokens
                self._shape(event.parts)
            elif isinstance(event, PromptFinished):
                self._count(event)
            elif isinstance(event, ToolCalled):
                self._call(event)
            elif isinstance(event, ToolReturned):
                self._return(event)
            elif isinstance(event, ApprovalWanted):
                self._ask(event)

    def end(self, error: HeadraceError | None) -> None:
        """Nothing more comes: the last event says what has become of the response. Once."""
        if self.response.status not in UNFINISHED:
            return
        self._begin()
        complete = error is None and self._reason == "stop"
        if complete and self._items == 0:
            self._start(OutputMessage(id=self._new_id(OutputMessage), content=[], status="in_progress"))
        if self._open is not None and self._shows_logprobs:
            self._open.logprobs += chat_logprobs(self._logprobs).content
        self._close("completed" if complete else "incomplete")
        response = self.response
        response.status, name = self._outcome(error)
        if error is not None:
            response.error = failure(error)
        if response.status == "incomplete":
            is_filtered = self._reason == "content_filter"
            reason = "content_filter" if is_filtered else self._why
            response.incomplete_details = IncompleteDetails(reason)
        response.completed_at = int(self._time_s()) if response.status == "completed" else None
        self._event(name, response=response)

    def _outcome(self, error: HeadraceError | None) -> tuple[Status, str]:
        if error is not None:
            return "failed", "response.failed"
        if self._reason is None:  # a stream of a cancelled response ends like one of an incomplete one
            return "cancelled", "response.incomplete"
        if self._reason in ("length", "content_filter"):
            return "incomplete", "response.incomplete"
        return "completed", "response.completed"

    def _new_id(self, kind: type[Struct]) -> str:
        """The id of the next item: the same one where the response is made again."""
        self._ids += 1
        return item_id(kind, derived_id(self.response.id, self._ids))

    def _begin(self) -> None:
        if self._number == 0:
            self.response.status = "in_progress"
            self.announce()
        elif self.response.status == "queued":
            self.response.status = "in_progress"
            self._event("response.in_progress", response=self.response)

    def _count(self, done: PromptFinished) -> None:
        usage = done.usage
        if done.seed is not None:
            self.response.seed = done.seed
        self.response.usage = ResponseUsage(
            usage.prompt_tokens,
            ResponseInputDetails(usage.cached_tokens, usage.cache_miss_reason),
            usage.completion_tokens,
            ResponseOutputDetails(self._reasoning_tokens),
            usage.prompt_tokens + usage.completion_tokens,
        )

    def _shape(self, events: Sequence[AnswerEvent]) -> None:
        for event in events:
            match event:
                case Text(text):
                    if self._open is None or not isinstance(self._open.item, OutputMessage):
                        self._start(
                            OutputMessage(id=self._new_id(OutputMessage), content=[], status="in_progress")
                        )
                    self._say(text)
                case Reasoning(text):
                    if not text:  # a signature, for which there is no place
                        continue
                    if self._open is None or not isinstance(self._open.item, ReasoningItem):
                        self._start(ReasoningItem(id=self._new_id(ReasoningItem), status="in_progress"))
                    self._say(text)
                case CallStart(_, call_id, name):
                    call = FunctionCall(call_id=call_id, name=name, arguments="", status="in_progress")
                    call.id = self._new_id(FunctionCall)
                    self._start(call)
                case Arguments(_, text):
                    self._say(text)
                case CallEnd():
                    self._close("completed")
                case CallFailed():
                    self._close("incomplete")
                    self.response.output.pop()

    def _call(self, event: ToolCalled) -> None:
        self._close("completed")
        item = _called(event)
        self._calls[event.id] = item, self._items
        at = {"output_index": self._items, "item_id": item.id}
        self._items += 1
        self._event("response.output_item.added", output_index=at["output_index"], item=item)
        if isinstance(item, FileSearchCall):
            self._event("response.file_search_call.in_progress", **at)
            self._event("response.file_search_call.searching", **at)
            return
        self._event("response.mcp_call_arguments.done", arguments=item.arguments, **at)
        self._event("response.mcp_call.in_progress", **at)

    def _return(self, event: ToolReturned) -> None:
        item, index = self._calls.pop(event.id)
        item.status = "failed" if event.is_error else "completed"
        if isinstance(item, FileSearchCall):
            item.results = None if event.is_error else _results(event.output)
            self._passages += item.results or []
            kind = "response.file_search_call.completed"  # it has no event for those that fail
        else:
            kind = f"response.mcp_call.{item.status}"
            if event.is_error:
                item.error = ToolFailure([{"type": "text", "text": event.output}])
            else:
                item.output = event.output
        self._event(kind, output_index=index, item_id=item.id)
        self._event("response.output_item.done", output_index=index, item=item)
        self.response.output.append(item)

    def _ask(self, event: ApprovalWanted) -> None:
        self._close("completed")
        label, name = _label(event.server, event.name)
        item = McpApprovalRequest(
            id=f"mcpr_{event.id}", name=name, server_label=label, arguments=event.arguments
        )
        self._event("response.output_item.added", output_index=self._items, item=item)
        self._event("response.output_item.done", output_index=self._items, item=item)
        self._items += 1
        self.response.output.append(item)

    def _start(self, item: OutputItem) -> None:
        self._close("completed")
        self._open = OpenItem(item, self._items)
        self._items += 1
        self._event("response.output_item.added", output_index=self._open.index, item=item)
        if isinstance(item, OutputMessage):
            self._part_event("response.content_part.added", OutputText(text=""))
        elif isinstance(item, ReasoningItem):
            self._part_event("response.content_part.added", ReasoningText(""))

    def _say(self, text: str) -> None:
        """More text, or arguments, of the open item."""
        open_item = self._open
        assert open_item is not None
        open_item.text.append(text)
        at = {"output_index": open_item.index, "item_id": open_item.item.id}
        tokens, self._logprobs = self._logprobs, []
        if isinstance(open_item.item, FunctionCall):
            self._event("response.function_call_arguments.delta", delta=text, **at)
        elif isinstance(open_item.item, ReasoningItem):
            self._event("response.reasoning_text.delta", content_index=0, delta=text, **at)
        else:
            shown = chat_logprobs(tokens).content if self._shows_logprobs and tokens else []
            open_item.logprobs += shown
            self._event("response.output_text.delta", content_index=0, delta=text, logprobs=shown, **at)

    def _close(self, status: ItemStatus) -> None:
        """The open item, if there is one, is at its end."""
        open_item, self._open = self._open, None
        if open_item is None:
            return
        item, text = open_item.item, "".join(open_item.text)
        at = {"output_index": open_item.index, "item_id": item.id}
        if isinstance(item, FunctionCall):
            item.arguments = text
            self._event("response.function_call_arguments.done", arguments=text, name=item.name, **at)
        elif isinstance(item, ReasoningItem):
            item.content = [ReasoningText(text)]
            self._event("response.reasoning_text.done", content_index=0, text=text, **at)
            self._event("response.content_part.done", content_index=0, part=item.content[0], **at)
        elif isinstance(item, OutputMessage):
            cited = file_citations(text, self._passages)
            part = OutputText(text=text, annotations=list(cited), logprobs=open_item.logprobs)
            item.content = [part]
            for number, one in enumerate(cited):
                name = "response.output_text.annotation.added"
                self._event(name, content_index=0, annotation=one, annotation_index=number, **at)
            self._event("response.output_text.done", content_index=0, text=text, logprobs=part.logprobs, **at)
            self._event("response.content_part.done", content_index=0, part=part, **at)
        item.status = status
        self._event("response.output_item.done", output_index=open_item.index, item=item)
        self.response.output.append(item)

    def _part_event(self, name: str, part: OutputText | ReasoningText) -> None:
        assert self._open is not None
        at = {"output_index": self._open.index, "item_id": self._open.item.id}
        self._event(name, content_index=0, part=part, **at)

    def _event(self, kind: str, **fields: object) -> None:
        self._emit(ResponseEvent(type=kind, sequence_number=self._number, **fields))  # type: ignore[arg-type]
        self._number += 1


def _called(event: ToolCalled) -> McpCall | FileSearchCall:
    """The item of a call that begins."""
    label, name = _label(event.server, event.name)
    asked = event.id if event.id.startswith("mcpr_") else None
    if event.server is None and name == FILE_SEARCH and asked is None:
        return FileSearchCall(id=f"fs_{event.id}", queries=_queries(event.arguments), status="in_progress")
    return McpCall(
        id=f"mcp_{event.id}",
        name=name,
        server_label=label,
        arguments=event.arguments,
        approval_request_id=asked,
        status="in_progress",
    )


def _queries(arguments: str) -> list[str]:
    try:
        return [msgspec.json.decode(arguments, type=thread_safe(_Query)).query]
    except msgspec.MsgspecError:
        return []


def _results(output: str) -> list[FileSearchResult] | None:
    """The passages that a search gave as its text; None where it is something else."""
    try:
        return msgspec.json.decode(output, type=thread_safe(list[FileSearchResult]))
    except msgspec.MsgspecError:
        return None


def _label(server: str | None, name: str) -> tuple[str, str]:
    """The label of a tool's server, and its name there."""
    return (OWN_LABEL, name) if server is None else (server, name.removeprefix(f"{server}__"))


def failure(error: HeadraceError) -> ResponseFailure:
    """What a failed response says of its error."""
    if error.status == 429:
        return ResponseFailure("rate_limit_exceeded", error.message)
    return ResponseFailure("invalid_prompt" if error.status == 400 else "server_error", error.message)
