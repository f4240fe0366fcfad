"""POST /v1beta/models/{model}:generateContent, :streamGenerateContent and :countTokens."""

from __future__ import annotations

from typing import Literal

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.google.body import Content, CountBody, GenerateContentBody, PromptBody
from headrace.api.google.errors import GoogleError
from headrace.api.google.reply import GenerateFormat
from headrace.api.google.request_builder import generate_request, prompt_request
from headrace.api.google.schema import GenerateReply, TokenCount
from headrace.api.http.body import converted, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.event_stream import sse_content
from headrace.api.http.generation import respond
from headrace.api.http.query import Query, read_query
from headrace.api.service import get_service
from headrace.errors import InvalidRequest
from headrace.inference.preparation import chat_prompt, chat_tokens

MODEL = "/v1beta/models/{model:path}"
_EVENTS = (
    "With alt=sse replies whose candidates have the new parts, the last one with finishReason and "
    "usageMetadata, or an error; else the same as a JSON array."
)


class StreamQuery(Query, frozen=True):
    """The query of a stream."""

    alt: Literal["sse", "json"] = "json"


async def _generate(http: HttpRequest, model: str, *, stream: bool, as_array: bool = False) -> Response:
    body = await read_checked(GenerateContentBody, http)
    thinking = body.generation_config.thinking_config if body.generation_config is not None else None
    reply_id = call_of(http).new_id("resp")
    reply = GenerateFormat(reply_id, thinking is not None and thinking.include_thoughts, as_array)
    return await respond(http, generate_request(body, model, reply_id), reply, stream=stream)


@Endpoint("POST", f"{MODEL}:generateContent", body=GenerateContentBody, reply=GenerateReply)
async def generate_content(http: HttpRequest, model: str) -> Response:
    """Answer a conversation, as Google's API does."""
    return await _generate(http, model, stream=False)


@Endpoint(
    "POST",
    f"{MODEL}:streamGenerateContent",
    body=GenerateContentBody,
    reply=(),
    content=(sse_content(_EVENTS, GenerateReply, GoogleError),),
    query=StreamQuery,
)
async def stream_generate_content(http: HttpRequest, model: str) -> Response:
    """Answer a conversation as a stream: with alt=sse server-sent events, else a JSON array."""
    as_array = read_query(StreamQuery, http).alt != "sse"
    return await _generate(http, model, stream=True, as_array=as_array)


@Endpoint("POST", f"{MODEL}:countTokens", body=CountBody, reply=TokenCount)
async def count_tokens(http: HttpRequest, model: str) -> Response:
    """The number of tokens of the prompt that a request would have."""
    service, call = get_service(http), call_of(http)
    body = _counted(await read_checked(CountBody, http))
    request = prompt_request(body, model, "")
    if (route := service.remote.find(model)) is not None:
        return json_response(TokenCount(await service.remote.count_tokens(route, request, call)))
    used = await service.use(call, model)

    def counted() -> TokenCount:
        return TokenCount(
            len(chat_tokens(chat_prompt(request, used, call, service.settings.tool_format), used))
        )

    return json_response(await service.prepare_in_thread(used, counted))


def _counted(body: CountBody) -> PromptBody:
    if (body.contents is None) == (body.generate_content_request is None):
        raise InvalidRequest("send either contents or generateContentRequest", param="contents")
    if body.generate_content_request is not None:
        place = "generateContentRequest"
        return converted(GenerateContentBody, body.generate_content_request, place=place)
    return PromptBody(contents=body.contents or list[Content]())
