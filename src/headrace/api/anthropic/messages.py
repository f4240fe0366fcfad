"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from msgspec import Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.anthropic.body import MessageBody, PromptBody
from headrace.api.anthropic.errors import AnthropicError
from headrace.api.anthropic.reply import MessageReply
from headrace.api.anthropic.request_builder import message_request, prompt_request, thinking_display
from headrace.api.anthropic.schema import STREAM_EVENTS, AnthropicMessage, AnthropicTokenCount
from headrace.api.http.body import checked_body, read_checked
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.event_stream import sse_content
from headrace.api.http.generation import answer, respond
from headrace.api.service import Service, get_service
from headrace.inference.call_context import CallContext
from headrace.inference.preparation import chat_prompt, chat_tokens
from headrace.inference.requests import ChatRequest

_EVENTS = (
    "With stream: true, one event after another: message_start, ping, content_block_start, "
    "content_block_delta and content_block_stop for each block, message_delta, message_stop; or error, which "
    "ends a stream that failed."
)


def message_reply(body: MessageBody, call: CallContext) -> tuple[ChatRequest, MessageReply]:
    """The request of a body and the format of its reply; warnings go to `call`.

    Raises InvalidRequest for what contradicts itself.
    """
    reply_id = call.new_id("msg").replace("-", "_")
    hide_thinking = thinking_display(body) == "omitted"
    return message_request(body, reply_id, call), MessageReply(reply_id, hide_thinking)


@Endpoint(
    "POST",
    "/v1/messages",
    body=MessageBody,
    reply=AnthropicMessage,
    content=(sse_content(_EVENTS, *STREAM_EVENTS, AnthropicError),),
)
async def create_message(http: HttpRequest) -> Response:
    """Answer a conversation, as Anthropic's API does. Errors have its shape; overload is status 529."""
    body = await read_checked(MessageBody, http)
    request, reply = message_reply(body, call_of(http))
    return await respond(http, request, reply, stream=bool(body.stream))


async def complete_message(data: bytes, call: HttpCall, service: Service) -> Struct | Raw:
    """The endpoint without HTTP and streams, for batches."""
    request, reply = message_reply(checked_body(MessageBody, data, call), call)
    return await answer(service, request, reply, call)


@Endpoint("POST", "/v1/messages/count_tokens", body=PromptBody, reply=AnthropicTokenCount)
async def count_tokens(http: HttpRequest) -> Response:
    """The number of tokens of the prompt that a message would have."""
    service, call = get_service(http), call_of(http)
    body = await read_checked(PromptBody, http)
    if (route := service.remote.find(body.model)) is not None:
        request = prompt_request(body, "", call)
        return json_response(AnthropicTokenCount(await service.remote.count_tokens(route, request, call)))
    model = await service.use(call, body.model)

    def counted() -> AnthropicTokenCount:
        prompt = chat_prompt(prompt_request(body, "", call), model, call, service.settings.tool_format)
        return AnthropicTokenCount(len(chat_tokens(prompt, model)))

    return json_response(await service.prepare_in_thread(model, counted))
