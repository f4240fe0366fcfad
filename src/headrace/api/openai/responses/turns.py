"""Items to the messages that templates read: reasoning, text and calls of one turn belong together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from headrace.api.openai.responses.items import (
    FILE_SEARCH,
    OWN_LABEL,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputMessage,
    InputText,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    OutputMessage,
    OutputText,
    ReasoningItem,
    Refusal,
)
from headrace.chat.messages import Image, Message, ToolCall
from headrace.errors import InvalidRequest
from headrace.tools.tool import spotlighted


def messages_of(items: Sequence[Item], instructions: str | None) -> list[Message]:
    """The conversation that `items` are, after `instructions`.

    Raises InvalidRequest for the output of a call that is not there.
    """
    messages = [] if instructions is None else [Message("system", instructions)]
    turn: Message | None = None  # the assistant's, not complete yet
    names: dict[str, str] = {}
    made = {item.approval_request_id for item in items if isinstance(item, McpCall)}
    for item in items:
        if isinstance(item, McpApprovalResponse) or (
            isinstance(item, McpApprovalRequest) and item.id in made
        ):
            continue
        if isinstance(item, McpCall | FileSearchCall):
            turn = _with(turn or Message("assistant", None), _call_of(item))
            messages += [turn, _result_of(item)]
            turn = None
            continue
        if isinstance(item, McpApprovalRequest):  # its result is on its way, or never comes
            item = _call_of(item)
        if isinstance(item, InputMessage | FunctionCallOutput):
            messages += [] if turn is None else [turn]
            turn = None
            messages.append(_input(item, names))
            continue
        if turn is not None and _begins_turn(item, turn):
            messages.append(turn)
            turn = None
        turn = _with(turn or Message("assistant", None), item)
        if isinstance(item, FunctionCall):
            names[item.call_id] = item.name
    messages += [] if turn is None else [turn]
    return [message for message in messages if message != Message("assistant", None)]


def merged(item: McpCall | FileSearchCall | McpApprovalRequest) -> str:
    """The name of a call's tool among all tools."""
    if isinstance(item, FileSearchCall):
        return FILE_SEARCH
    return item.name if item.server_label == OWN_LABEL else f"{item.server_label}__{item.name}"


def _call_of(item: McpCall | FileSearchCall | McpApprovalRequest) -> FunctionCall:
    if isinstance(item, FileSearchCall):
        arguments = msgspec.json.encode({"query": " ".join(item.queries)}).decode()
    else:
        arguments = item.arguments
    return FunctionCall(call_id=item.id, name=merged(item), arguments=arguments)


def _result_of(item: McpCall | FileSearchCall) -> Message:
    if isinstance(item, FileSearchCall):
        found = item.results
        said = "the search has failed" if found is None else msgspec.json.encode(found).decode()
    elif item.error is None:
        said = item.output or ""
    else:
        said = "\n".join(part.get("text", "") for part in item.error.content)
    return Message("tool", spotlighted(merged(item), said), name=merged(item), tool_call_id=item.id)


def _input(item: InputMessage | FunctionCallOutput, names: dict[str, str]) -> Message:
    if isinstance(item, InputMessage):
        return Message(item.role, _text(item.content), images=_images(item.content))
    if item.call_id not in names:
        raise InvalidRequest(
            f"the function_call_output for {item.call_id[:80]!r} has no function_call before it: send the "
            "call as well, or previous_response_id",
            param="input",
        )
    return Message("tool", _text(item.output), name=names[item.call_id], tool_call_id=item.call_id)


def _begins_turn(item: OutputMessage | FunctionCall | ReasoningItem, turn: Message) -> bool:
    """Whether the item cannot follow what is there in one turn: reasoning, then text, then calls."""
    if isinstance(item, FunctionCall):
        return False
    return bool(turn.tool_calls) or turn.content is not None


def _with(turn: Message, item: OutputMessage | FunctionCall | ReasoningItem) -> Message:
    if isinstance(item, FunctionCall):
        call = ToolCall(item.call_id, item.name, item.arguments or "{}")
        return replace(turn, tool_calls=(*turn.tool_calls, call))
    if isinstance(item, OutputMessage):
        return replace(turn, content=_text(item.content))
    thought = "".join(part.text for part in item.content)
    return replace(turn, reasoning=(turn.reasoning or "") + thought or None)


def _text(content: str | Sequence[InputText | InputImage | OutputText | Refusal]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        part.refusal if isinstance(part, Refusal) else part.text
        for part in content
        if not isinstance(part, InputImage)
    )


def _images(content: str | Sequence[InputText | InputImage]) -> tuple[Image, ...]:
    if isinstance(content, str):
        return ()
    return tuple(
        Image(part.image_url, len(_text(content[:index])), part.detail, "input")
        for index, part in enumerate(content)
        if isinstance(part, InputImage)
    )
