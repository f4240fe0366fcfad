"""POST /api/chat: answer a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, cast

from fastapi import APIRouter
from msgspec import UNSET
from pydantic import WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.ollama.bodies import AnswerBody
from headrace.api.ollama.delta import OutputDelta
from headrace.api.ollama.handler import answer
from headrace.api.ollama.model_names import ResolvedModel
from headrace.api.ollama.reply import line_replies
from headrace.api.ollama.schema import OllamaChat, OllamaMessage, timestamp
from headrace.api.ollama.thinking import think_variables
from headrace.api.openai.parameters import check_characters, json_schema, read_parameters
from headrace.api.openai.schema import ParameterWarning
from headrace.api.service import new_id
from headrace.chat.messages import Message, messages_from_openai
from headrace.chat.prompt import ChatPrompt, prepare
from headrace.chat.templates.chat_template import missing_template
from headrace.chat.tools import tool_use_from_openai
from headrace.engine.request import EngineRequest
from headrace.errors import InvalidRequest

router = APIRouter()


class ChatBody(AnswerBody):
    """The body of /api/chat."""

    messages: list[dict[str, Any]] | None = None
    tools: Annotated[Any, WithJsonSchema({"type": ["array", "null"], "items": {"type": "object"}})] = None

    @property
    def asks_nothing(self) -> bool:
        """Whether nothing is to be computed, only the model to be loaded or unloaded."""
        return not self.messages


@router.post(
    "/api/chat",
    openapi_extra=json_schema(ChatBody),
    responses=line_replies(OllamaChat),
)
async def chat(http: HttpRequest) -> Response:
    """Answer a conversation; without messages, load the model."""
    body, warnings = await read_parameters(ChatBody, http)
    return await answer(http, body, warnings, shape=_shape, prepare=partial(_prepare, body))


def _shape(name: str, part: OutputDelta) -> OllamaChat:
    message = OllamaMessage(part.text, thinking=part.thinking or UNSET, tool_calls=part.calls or UNSET)
    logprobs = part.logprobs or UNSET
    return OllamaChat(model=name, created_at=timestamp(), message=message, logprobs=logprobs)


def _prepare(
    body: ChatBody, used: ResolvedModel, tool_format: str | None, cache_salt: str
) -> tuple[EngineRequest, ChatPrompt, list[ParameterWarning]]:
    """The engine request, its conversation and warnings. Not for the event loop."""
    model = used.model
    if model.template is None:
        raise missing_template(used.name)
    options = body.read_options(used.parameters)
    variables, warnings = think_variables(body.think, model.template, used.name)
    messages = _messages(body.messages or [], used.system)
    last = messages[-1]
    is_continuation = last.role == "assistant" and bool(last.content) and not last.tool_calls
    conversation = prepare(
        model.template,
        messages,
        use=tool_use_from_openai(body.tools),
        family=tool_format,
        add_generation_prompt=not is_continuation,
        continue_final_message=is_continuation,
        variables=variables,
    )
    check_characters(conversation.text, model.context_length, "messages")
    # The template writes the special tokens, so none are added.
    ids = model.tokenizer.encode(conversation.text, add_special=False)
    request = EngineRequest(
        prompt=tuple(ids),
        params=options.sampling(model, len(ids), top_logprobs=body.logprob_count),
        request_id=new_id("chat"),
        cache_salt=cache_salt,
        visible_token_ids=conversation.visible_token_ids(model.tokenizer),
        constraint=conversation.constraint(model.tokenizer, body.constraint()),
    )
    return request, conversation, options.warnings() + warnings


def _messages(items: Sequence[Mapping[str, Any]], system: str | None) -> list[Message]:
    """The messages, with the alias's `system` before them where they have none of their own."""
    open_calls: list[tuple[str, str]] = []  # names and ids of calls that have not been answered
    messages = messages_from_openai([_openai(item, index, open_calls) for index, item in enumerate(items)])
    if system is not None and messages[0].role != "system":
        return [Message("system", system), *messages]
    return messages


def _openai(item: Mapping[str, Any], index: int, open_calls: list[tuple[str, str]]) -> dict[str, Any]:
    """A message in OpenAI's terms: calls have ids, arguments are text, results name the call they are of."""
    message = dict(item)
    if message.pop("images", None):
        where = f"messages[{index}].images"
        raise InvalidRequest(f"{where} cannot be read by this model, it reads text only", param=where)
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
