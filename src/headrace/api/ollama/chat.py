"""POST /api/chat: answer a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, cast

from msgspec import UNSET
from msgspec.structs import replace
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import loose, read_checked
from headrace.api.http.call_context import HttpCall
from headrace.api.http.endpoint import Endpoint
from headrace.api.ollama.bodies import AnswerBody
from headrace.api.ollama.delta import OllamaDelta
from headrace.api.ollama.handler import answer, generation
from headrace.api.ollama.images import images_of
from headrace.api.ollama.model_names import ResolvedModel
from headrace.api.ollama.reply import lines_of
from headrace.api.ollama.schema import OllamaChat, OllamaMessage, timestamp
from headrace.api.ollama.thinking import think_settings
from headrace.api.openai.generation_body import TOOLS
from headrace.chat.messages import Message, messages_from_openai
from headrace.chat.tools import tool_use_from_openai
from headrace.errors import InvalidRequest
from headrace.inference.requests import ChatRequest


class ChatBody(AnswerBody):
    """The body of /api/chat."""

    messages: list[dict[str, Any]] | None = None
    tools: Annotated[Any, loose(TOOLS)] = None

    @property
    def asks_nothing(self) -> bool:
        """Whether nothing is to be computed, only the model to be loaded or unloaded."""
        return not self.messages


@Endpoint("POST", "/api/chat", body=ChatBody, reply=OllamaChat, content=lines_of(OllamaChat))
async def chat(http: HttpRequest) -> Response:
    """Answer a conversation; without messages, load the model."""
    body = await read_checked(ChatBody, http)
    return await answer(http, body, shape=_shape, make_request=partial(_request, body))


def _shape(name: str, part: OllamaDelta) -> OllamaChat:
    message = OllamaMessage(part.text, thinking=part.thinking or UNSET, tool_calls=part.calls or UNSET)
    logprobs = part.logprobs or UNSET
    return OllamaChat(model=name, created_at=timestamp(), message=message, logprobs=logprobs)


def _request(body: ChatBody, used: ResolvedModel, call: HttpCall) -> ChatRequest:
    messages = _messages(body.messages or [], used.system)
    last = messages[-1]
    return ChatRequest(
        id=call.new_id("chat"),
        messages=tuple(messages),
        tools=tool_use_from_openai(body.tools),
        reasoning=think_settings(body.think),
        continue_final_message=last.role == "assistant" and bool(last.content) and not last.tool_calls,
        **generation(body, used, call),
    )


def _messages(items: Sequence[Mapping[str, Any]], system: str | None) -> list[Message]:
    """The messages, with the alias's `system` before them where they have none of their own."""
    open_calls: list[tuple[str, str]] = []  # names and ids of calls that have not been answered
    images = [images_of(item.get("images"), f"messages[{index}].images") for index, item in enumerate(items)]
    messages = messages_from_openai([_openai(item, index, open_calls) for index, item in enumerate(items)])
    messages = [
        replace(one, images=seen) if seen else one for one, seen in zip(messages, images, strict=True)
    ]
    if system is not None and messages[0].role != "system":
        return [Message("system", system), *messages]
    return messages


def _openai(item: Mapping[str, Any], index: int, open_calls: list[tuple[str, str]]) -> dict[str, Any]:
    """A message in OpenAI's terms: calls have ids, arguments are text, results name the call they are of."""
    message = dict(item)
    message.pop("images", None)
    message["reasoning"] = message.pop("thinking", None)
    if message.get("role") == "tool":
        name = message.pop("tool_name", None) or message.get("name")
        message["name"] = name
        message["tool_call_id"] = _answered(message.get("tool_call_id"), name, open_calls)
    if isinstance(message.get("tool_calls"), list):
        calls = cast("list[Any]", message["tool_calls"])
        message["tool_calls"] = [
            _openai_call(
                call, f"call_{index}_{number}", f"messages[{index}].tool_calls[{number}]", open_calls
            )
            for number, call in enumerate(calls)
        ]
    return message


def _openai_call(value: object, fresh: str, where: str, open_calls: list[tuple[str, str]]) -> dict[str, Any]:
    call = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    function = call.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(f"{where}.function is missing or no object", param=f"{where}.function")
    fields = cast("dict[str, Any]", function)
    arguments = fields.get("arguments")
    if not isinstance(arguments, dict | None):
        raise InvalidRequest(f"{where}.function.arguments is not an object", param=f"{where}.function")
    call_id = call.get("id") or fresh
    open_calls.append((str(fields.get("name")), str(call_id)))
    text = json.dumps(arguments or {}, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": fields.get("name"), "arguments": text}}


def _answered(call_id: object, name: object, open_calls: list[tuple[str, str]]) -> object:
    """The id of the call that a result is of: the one it gives, or of the first open call of that function,
    or where it names none of the first of all."""
    for entry in open_calls:
        if call_id == entry[1] or (call_id is None and name in (None, entry[0])):
            open_calls.remove(entry)
            return entry[1]
    return call_id
