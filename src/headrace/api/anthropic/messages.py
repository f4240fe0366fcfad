"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.anthropic.body import MessageBody, PromptBody, ThinkingDisabled
from headrace.api.anthropic.errors import AnthropicError
from headrace.api.anthropic.reply import MessageMeta, respond
from headrace.api.anthropic.request_builder import Prompt, make_prompt, make_request
from headrace.api.anthropic.schema import STREAM_EVENTS, AnthropicMessage, AnthropicTokenCount
from headrace.api.http.call_context import call_of
from headrace.api.http.errors import json_response
from headrace.api.http.openapi import SCHEMA_OF, replies
from headrace.api.http.sse import MEDIA_TYPE
from headrace.api.openai.parameters import json_schema, read_parameters
from headrace.api.service import get_service, key_salt
from headrace.engine.request import EngineRequest

router = APIRouter()

_EVENTS = (
    "With stream: true, one event after another: message_start, ping, content_block_start, "
    "content_block_delta and content_block_stop for each block, message_delta, message_stop; or error, which "
    "ends a stream that failed."
)


def _message_replies() -> dict[int | str, dict[str, Any]]:
    found = replies(AnthropicMessage)
    bodies = [{"$ref": SCHEMA_OF.format(name=kind.__name__)} for kind in (*STREAM_EVENTS, AnthropicError)]
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": bodies}}
    event = {"type": "object", "properties": {"event": {"type": "string"}, "data": data}}
    found[200]["content"][MEDIA_TYPE] = {"schema": event | {"description": _EVENTS}}
    return found


@router.post("/v1/messages", openapi_extra=json_schema(MessageBody), responses=_message_replies())
async def create_message(http: HttpRequest) -> Response:
    """Answer a conversation, as Anthropic's API does. Errors have its shape; overload is status 529."""
    service = get_service(http)
    body, warnings = await read_parameters(MessageBody, http)
    model = await service.use(call_of(http), body.model)
    cache_salt = key_salt(http, None)

    def prepared() -> tuple[Prompt, EngineRequest]:
        prompt = make_prompt(body, model, service.settings.tool_format)
        return prompt, make_request(body, prompt, model, f"msg_{uuid.uuid4().hex}", cache_salt)

    prompt, request = await service.run_in_thread(prepared)
    thinking = body.thinking
    hidden = (
        thinking is not None and not isinstance(thinking, ThinkingDisabled) and thinking.display == "omitted"
    )
    head = MessageMeta(model.name, len(prompt.tokens), [*warnings, *prompt.warnings], hidden)
    return await respond(http, model, request, prompt.conversation, head, stream=bool(body.stream))


@router.post(
    "/v1/messages/count_tokens", openapi_extra=json_schema(PromptBody), responses=replies(AnthropicTokenCount)
)
async def count_tokens(http: HttpRequest) -> Response:
    """How many tokens the prompt of a message would have."""
    service = get_service(http)
    body, _ = await read_parameters(PromptBody, http)
    model = await service.use(call_of(http), body.model)
    prompt = await service.run_in_thread(lambda: make_prompt(body, model, service.settings.tool_format))
    return json_response(AnthropicTokenCount(len(prompt.tokens)))
