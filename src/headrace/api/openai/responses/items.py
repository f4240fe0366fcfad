"""Items: what goes into a response and what comes out of it, as clients send them and as they are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast
from uuid import uuid4

import msgspec

from headrace.api.openai.schema import ContentLogprob
from headrace.chat.messages import is_image_url
from headrace.errors import InvalidRequest
from headrace.struct_types import thread_safe

ItemStatus = Literal["in_progress", "completed", "incomplete"]
MAX_ITEM_ID = 128


class InputText(msgspec.Struct, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    """Text that a message or a tool's answer says."""

    text: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image", forbid_unknown_fields=True):
    """An image, for remote models that see: models of this machine read text only."""

    image_url: str
    detail: str | None = None


class OutputText(
    msgspec.Struct, tag_field="type", tag="output_text", kw_only=True, forbid_unknown_fields=True
):
    """Text that the model said."""

    text: str
    annotations: list[Any] = []
    logprobs: list[ContentLogprob] = []


class Refusal(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """Text by which another model refused; this server's answers have none."""

    refusal: str


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text", forbid_unknown_fields=True):
    """Text of the reasoning."""

    text: str


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text", forbid_unknown_fields=True):
    """A summary of reasoning that another server made; this server makes none."""

    text: str


class InputMessage(msgspec.Struct, tag_field="type", tag="message", kw_only=True, forbid_unknown_fields=True):
    """A message to the model."""

    id: str = ""
    role: Literal["user", "system", "developer"]
    content: str | list[InputText | InputImage]
    status: ItemStatus = "completed"


class OutputMessage(
    msgspec.Struct, tag_field="type", tag="message", kw_only=True, forbid_unknown_fields=True
):
    """A message of the model."""

    id: str = ""
    role: Literal["assistant"] = "assistant"
    content: str | list[OutputText | Refusal]
    status: ItemStatus = "completed"


class FunctionCall(
    msgspec.Struct, tag_field="type", tag="function_call", kw_only=True, forbid_unknown_fields=True
):
    """A call of a function by the model; `arguments` is JSON text."""

    id: str = ""
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


class FunctionCallOutput(
    msgspec.Struct, tag_field="type", tag="function_call_output", kw_only=True, forbid_unknown_fields=True
):
    """What a call has given."""

    id: str = ""
    call_id: str
    output: str | list[InputText]
    status: ItemStatus = "completed"


class ReasoningItem(
    msgspec.Struct, tag_field="type", tag="reasoning", kw_only=True, forbid_unknown_fields=True
):
    """What the model thought. The text is open, in `content`; there is no summary and nothing encrypted."""

    id: str = ""
    summary: list[SummaryText] = []
    content: list[ReasoningText] = []
    status: ItemStatus = "completed"


class ToolFailure(msgspec.Struct, forbid_unknown_fields=True):
    """Why a call has given an error, as a tool's own content."""

    content: list[dict[str, str]]
    type: Literal["mcp_tool_execution_error"] = "mcp_tool_execution_error"


class McpCall(msgspec.Struct, tag_field="type", tag="mcp_call", kw_only=True, forbid_unknown_fields=True):
    """A call of a tool by this server: of an MCP server, or with the label headrace of its own."""

    id: str = ""
    name: str
    server_label: str
    arguments: str
    output: str | None = None
    error: ToolFailure | None = None
    approval_request_id: str | None = None
    status: Literal["in_progress", "completed", "incomplete", "calling", "failed"] = "completed"


class FileSearchResult(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A passage of a file. With a higher `score` it answers the query better."""

    file_id: str
    filename: str
    text: str
    score: float | None = None
    attributes: dict[str, str | int | float | bool] | None = None
    vector_store_id: str | None = None


class FileSearchCall(
    msgspec.Struct, tag_field="type", tag="file_search_call", kw_only=True, forbid_unknown_fields=True
):
    """A search in vector stores by this server. It always has its `results`: the next turn reads them."""

    id: str = ""
    queries: list[str]
    results: list[FileSearchResult] | None = None
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"] = "completed"


class McpApprovalRequest(
    msgspec.Struct, tag_field="type", tag="mcp_approval_request", kw_only=True, forbid_unknown_fields=True
):
    """A call that is made when the client agrees, with an `mcp_approval_response`."""

    id: str = ""
    name: str
    server_label: str
    arguments: str
    status: ItemStatus = "completed"


class McpApprovalResponse(
    msgspec.Struct, tag_field="type", tag="mcp_approval_response", kw_only=True, forbid_unknown_fields=True
):
    """Whether a call that was asked about may be made."""

    id: str = ""
    approval_request_id: str
    approve: bool
    reason: str | None = None
    status: ItemStatus = "completed"


class ItemReference(msgspec.Struct, tag_field="type", tag="item_reference", forbid_unknown_fields=True):
    """An item of a kept response, by its id."""

    id: str


OutputItem = OutputMessage | FunctionCall | ReasoningItem | McpCall | FileSearchCall | McpApprovalRequest
Item = (
    InputMessage
    | OutputMessage
    | FunctionCall
    | FunctionCallOutput
    | ReasoningItem
    | McpCall
    | FileSearchCall
    | McpApprovalRequest
    | McpApprovalResponse
)
OWN_LABEL = "headrace"
"""Of this server's own tools among `server_label`s."""
FILE_SEARCH = "file_search"
"""The name of the tool whose calls are `FileSearchCall`s."""

_PREFIXES: Mapping[type[msgspec.Struct], str] = {
    InputMessage: "msg",
    OutputMessage: "msg",
    FunctionCall: "fc",
    FunctionCallOutput: "fco",
    ReasoningItem: "rs",
    McpCall: "mcp",
    FileSearchCall: "fs",
    McpApprovalRequest: "mcpr",
    McpApprovalResponse: "mcpa",
}
_KINDS: Mapping[str, type[msgspec.Struct]] = {
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
    "mcp_call": McpCall,
    "file_search_call": FileSearchCall,
    "mcp_approval_request": McpApprovalRequest,
    "mcp_approval_response": McpApprovalResponse,
}
_TEXT_PARTS = ("input_text", "output_text", "refusal", "reasoning_text", "summary_text")


def item_id(kind: type[msgspec.Struct], digits: str = "") -> str:
    """The id of an item of that kind: with these digits, or a fresh one."""
    return f"{_PREFIXES[kind]}_{digits or uuid4().hex}"


def read_input(value: object, find: Callable[[str], Item | None]) -> list[Item]:
    """The items of `input`, each with an id; `find` gives kept ones by theirs.

    Raises InvalidRequest that names what is not an item, or holds what this server cannot read.
    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list | tuple) or not value:
        raise InvalidRequest("input is neither a text nor a list of at least one item", param="input")
    entries = cast("Sequence[object]", value)
    items = [_read(entry, f"input[{index}]", find) for index, entry in enumerate(entries)]
    return [_normal(item) for item in items]


def stored_item(data: bytes) -> Item:
    """An item as it was kept."""
    return _convert(msgspec.json.decode(data), "item")  # type: ignore[return-value]


def _read(entry: object, where: str, find: Callable[[str], Item | None]) -> Item:
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{where} is not an object", param="input")
    # Clients send back what they were sent, also fields that are null.
    fields = {key: part for key, part in cast("dict[str, object]", entry).items() if part is not None}
    fields.setdefault("type", "message" if "role" in fields else "item_reference")
    if fields["type"] == "message" and isinstance(fields.get("phase"), str):
        del fields["phase"]  # the body has warned of it
    item = _convert(fields, where)
    if not isinstance(item, ItemReference):
        return cast("Item", item)
    found = find(item.id)
    if found is None:
        raise InvalidRequest(
            f"{where} refers to {item.id[:80]!r}, which is no item of a kept response of this key",
            param="input",
        )
    return found


def _convert(fields: Mapping[str, object], where: str) -> msgspec.Struct:
    kind = fields.get("type")
    shape: type[msgspec.Struct] | None
    if kind == "message":
        shape = OutputMessage if fields.get("role") == "assistant" else InputMessage
    else:
        shape = _KINDS.get(kind) if isinstance(kind, str) else None
    if shape is None:
        known = ", ".join(("message", *_KINDS))
        raise InvalidRequest(f"{where}.type is {kind!r:.60}: items are of type {known}", param="input")
    _check_parts(fields, where)
    if shape is ReasoningItem and "encrypted_content" in fields:
        raise InvalidRequest(
            f"{where}.encrypted_content is of another server and cannot be read: send the text in content",
            param="input",
        )
    try:
        return msgspec.convert(fields, thread_safe(shape))
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{where}: {error}", param="input", code="invalid_type") from None


def _check_parts(fields: Mapping[str, object], where: str) -> None:
    """Refuse images, files and sound by their names."""
    for key in ("content", "output"):
        parts = fields.get(key)
        for index, part in enumerate(cast("list[object]", parts) if isinstance(parts, list) else ()):
            kind = cast("dict[str, object]", part).get("type") if isinstance(part, dict) else None
            if key == "content" and kind == "input_image" and fields.get("role") == "user":
                url = cast("dict[str, object]", part).get("image_url")
                if not is_image_url(url if isinstance(url, str) else None):
                    raise InvalidRequest(
                        f"{where}.{key}[{index}]: input_image.image_url is neither an http or https address "
                        "nor data:image/TYPE;base64,DATA",
                        param="input",
                    )
            elif isinstance(kind, str) and kind not in _TEXT_PARTS:
                raise InvalidRequest(
                    f"{where}.{key}[{index}].type is {kind!r:.60}; this model reads text only", param="input"
                )


def _normal(item: Item) -> Item:
    """The item with an id, and its text as a list of parts."""
    if len(item.id) > MAX_ITEM_ID:
        raise InvalidRequest(
            f"an item's id has {len(item.id)} characters, at most {MAX_ITEM_ID}", param="input"
        )
    named = msgspec.structs.replace(item, id=item.id or item_id(type(item)))
    if isinstance(named, InputMessage) and isinstance(named.content, str):
        named.content = [InputText(named.content)]
    elif isinstance(named, OutputMessage) and isinstance(named.content, str):
        named.content = [OutputText(text=named.content)]
    return named
