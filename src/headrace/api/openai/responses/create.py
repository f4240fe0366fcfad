"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import checked_body, read_checked
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import ClientGone, json_response
from headrace.api.http.event_stream import chunks
from headrace.api.http.generation import unless_gone
from headrace.api.http.several_fronts import without_store
from headrace.api.openai.generation_body import granted_tier
from headrace.api.openai.responses.agent import agent_of
from headrace.api.openai.responses.body import CountBody, ResponseBody
from headrace.api.openai.responses.generate import in_background, made, streamed, whole
from headrace.api.openai.responses.items import Item, read_input, stored_item
from headrace.api.openai.responses.schema import ResponseEvent, ResponseInputTokens, ResponseObject
from headrace.api.service import Service, get_service
from headrace.errors import InvalidRequest
from headrace.inference.handler import OpenStream, open_stream
from headrace.inference.preparation import chat_prompt, chat_tokens
from headrace.inference.requests import ChatRequest
from headrace.inference.response_store import InProgressResponse, ResponseStore

_NO_TOOL = "A server of tools that it names has none that may be used, or a remote model has failed."


@Endpoint(
    "POST",
    "/v1/responses",
    body=ResponseBody,
    reply=ResponseObject,
    content=chunks(ResponseEvent),
    errors={501: "It names tools of this server, and headrace[tools] is not installed.", 502: _NO_TOOL},
)
async def create_response(http: HttpRequest) -> Response:
    """Answer a conversation with items: text, reasoning, calls. Kept for 30 days unless `store` is false."""
    service, call = get_service(http), call_of(http)
    store = service.responses
    with call.stage("read request"):
        body = await read_checked(ResponseBody, http)
        if service.fronts > 1 and not service.is_shared:
            body = without_store(body, call)
    logprobs, is_streamed = body.wants_logprobs, bool(body.stream)
    opening = _opened(body, call, service)
    if body.background:
        opened = await opening
    else:
        opened = await unless_gone(http, opening, drop=lambda one: one[0].aclose())
    if opened is None:
        raise ClientGone("the client left before anything was computed")
    stream, making = opened
    if body.background:
        return await in_background(
            stream, store, making, logprobs=logprobs, follow=is_streamed, journal=call.journal
        )
    if is_streamed:
        return await streamed(stream, store, making, logprobs=logprobs)
    return await whole(http, stream, store, making, logprobs=logprobs)


async def _opened(
    body: ResponseBody, call: HttpCall, service: Service
) -> tuple[OpenStream, InProgressResponse[ResponseObject]]:
    """The stream of the body's request, and the response that is made of it."""
    response_id = call.new_id("resp").replace("-", "_")

    def prepared() -> tuple[str, list[Item], list[Item], ChatRequest]:
        owner = call.account.owner()
        inputs, items = _items(service.responses, body, owner)
        return owner, inputs, items, body.request(response_id, items)

    with call.stage("read conversation"):
        owner, inputs, items, request = await service.run_in_thread(prepared)
    if body.background:
        service.responses.check_background(owner, call.account)
    if body.runs_tools:
        with call.stage("choose tools"):
            handler = await agent_of(body, items, request, call, service)
        stream = await open_stream(handler, request, call)
    else:
        stream = await service.open(request, call)
    try:
        response = body.response(response_id, stream.prepared, granted_tier(body.urgency, call))
    except BaseException:
        await stream.aclose()
        raise
    response.created_at = int(call.arrived_unix_s)
    if call.warnings:
        response.warnings = call.warnings
    return stream, InProgressResponse(response, call.account, owner, inputs, call.time_s)


@Endpoint("POST", "/v1/responses/input_tokens", body=CountBody, reply=ResponseInputTokens)
async def count_input_tokens(http: HttpRequest) -> Response:
    """How many tokens a response's input would be."""
    service, call = get_service(http), call_of(http)
    body = await read_checked(CountBody, http)
    model = await service.use(call, body.model)

    def counted() -> int:
        _, items = _items(service.responses, body, call.account.owner())
        prompt = chat_prompt(body.chat("", items), model, call, service.settings.tool_format)
        return len(chat_tokens(prompt, model))

    return json_response(ResponseInputTokens(await service.prepare_in_thread(model, counted)))


async def make_response(data: bytes, call: HttpCall, service: Service) -> ResponseObject:
    """The endpoint without HTTP and streams, for batches."""
    body = checked_body(ResponseBody, data, call)
    stream, making = await _opened(body, call, service)
    try:
        await service.responses.begin(making)
    except BaseException:
        await stream.aclose()
        raise
    return await made(stream, service.responses, making, logprobs=body.wants_logprobs)


def _items(store: ResponseStore, body: ResponseBody, owner: str) -> tuple[list[Item], list[Item]]:
    """The request's own items, and those of the whole conversation. Not for the event loop."""
    previous = body.previous_response_id
    if body.input is None:
        if previous is None and body.instructions is None:
            raise InvalidRequest(
                "there is nothing to answer: send input, previous_response_id or instructions",
                param="input",
                code="missing_required_parameter",
            )
        inputs: list[Item] = []
    else:
        inputs = read_input(body.input, lambda item_id: _kept_item(store, owner, item_id))
    before = [] if previous is None else store.context(owner, previous)
    return inputs, [*(stored_item(item.body) for item in before), *inputs]


def _kept_item(store: ResponseStore, owner: str, item_id: str) -> Item | None:
    found = store.item(owner, item_id)
    return None if found is None else stored_item(found.body)
