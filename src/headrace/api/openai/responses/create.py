"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.errors import json_response
from headrace.api.http.openapi import replies, request_body
from headrace.api.openai.parameters import body_schema, read_parameters
from headrace.api.openai.responses.body import ELSEWHERE, CountBody, PromptBody, ResponseBody
from headrace.api.openai.responses.generate import PreparedResponse, Run
from headrace.api.openai.responses.items import Item, read_input
from headrace.api.openai.responses.response_manager import (
    InProgressResponse,
    ResponseManager,
    get_response_manager,
)
from headrace.api.openai.responses.schema import ResponseEvent, ResponseInputTokens, ResponseObject
from headrace.api.openai.schema import ParameterWarning
from headrace.api.service import get_service, key_salt, new_id
from headrace.chat.prompt import STRICT_UNAVAILABLE, ChatPrompt

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel


router = APIRouter()


def schema_of(kind: type[PromptBody]) -> dict[str, Any]:
    """The body's entry in the OpenAPI document, without the parameters of other endpoints."""

    def schema() -> dict[str, Any]:
        found = body_schema(kind)
        for name in ELSEWHERE:
            found["properties"].pop(name, None)
        return found

    return request_body(schema)


@router.post(
    "/v1/responses", openapi_extra=schema_of(ResponseBody), responses=replies(ResponseObject, ResponseEvent)
)
async def create_response(http: HttpRequest) -> Response:
    """Answer a conversation with items: text, reasoning, calls. Kept for 30 days unless `store` is false."""
    service, desk, call = get_service(http), get_response_manager(http), call_of(http)
    body, warnings = await read_parameters(ResponseBody, http)
    model = await service.use(call, body.model)
    response_id, cache_salt = new_id("resp").replace("-", "_"), key_salt(http, body.prompt_cache_key)

    def prepared() -> PreparedResponse:
        owner = call.account.owner()
        inputs, conversation = _conversation(desk, body, model, owner, service.settings.tool_format)
        return PreparedResponse(
            owner, inputs, conversation, body.request(model, conversation, response_id, cache_salt)
        )

    ready = await service.run_in_thread(prepared)
    warnings += _warnings(body, model, ready.conversation)
    response = body.response(response_id, model, ready.request)
    if warnings:
        response.warnings = warnings
    making = InProgressResponse(response, call.account, ready.owner, ready.inputs)
    run = Run(http, model, ready, making, body.wants_logprobs)
    if body.background:
        return await run.in_background(stream=bool(body.stream))
    return await (run.streamed() if body.stream else run.whole())


@router.post(
    "/v1/responses/input_tokens", openapi_extra=schema_of(CountBody), responses=replies(ResponseInputTokens)
)
async def count_input_tokens(http: HttpRequest) -> Response:
    """How many tokens a response's input would be."""
    service, desk, call = get_service(http), get_response_manager(http), call_of(http)
    body, _ = await read_parameters(CountBody, http)
    model = await service.use(call, body.model)

    def counted() -> int:
        owner = call.account.owner()
        _, conversation = _conversation(desk, body, model, owner, service.settings.tool_format)
        return len(model.tokenizer.encode(conversation.text, add_special=False))

    return json_response(ResponseInputTokens(await service.run_in_thread(counted)))


def _conversation(
    desk: ResponseManager, body: PromptBody, model: LoadedModel, owner: str, tool_format: str | None
) -> tuple[list[Item], ChatPrompt]:
    """The request's own items, and all of the conversation made ready. Not for the event loop."""
    inputs = read_input(body.input, lambda item_id: desk.item(owner, item_id))
    previous = body.previous_response_id
    before = [] if previous is None else desk.context(owner, previous)
    return inputs, body.prepare(model, [*before, *inputs], tool_format)


def _warnings(body: PromptBody, model: LoadedModel, conversation: ChatPrompt) -> list[ParameterWarning]:
    """Warnings for what this model makes nothing of."""
    found = body.idle_variables(model)
    if conversation.strict_unavailable:
        found.append(ParameterWarning("tools", STRICT_UNAVAILABLE))
    return found
