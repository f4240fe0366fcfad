"""Endpoints of OpenAI's under llama.cpp's paths, which have no version. Errors are in llama.cpp's shape."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.event_stream import chunks
from headrace.api.http.generation import respond
from headrace.api.llama_cpp.schema import InputTokens
from headrace.api.openai.chat_completions import ChatBody, read_chat
from headrace.api.openai.model_schema import ModelList
from headrace.api.openai.models import model_cards
from headrace.api.openai.schema import ChatChunk, ChatReply
from headrace.api.openai.tokenize import ConversationBody
from headrace.api.service import get_service


@Endpoint("POST", "/chat/completions", body=ChatBody, reply=ChatReply, content=chunks(ChatChunk), hidden=True)
async def chat_completions(http: HttpRequest) -> Response:
    """As /v1/chat/completions, but the text in the first event of a stream is null."""
    body = await read_chat(http)
    reply_id = call_of(http).new_id("chatcmpl")
    reply = body.reply(reply_id, first_text=None)
    return await respond(http, body.request(reply_id), reply, stream=bool(body.stream))


@Endpoint("POST", "/chat/completions/input_tokens", body=ConversationBody, reply=InputTokens)
async def input_tokens(http: HttpRequest) -> Response:
    """How many tokens the prompt of a conversation has."""
    service, call = get_service(http), call_of(http)
    body = await read_checked(ConversationBody, http)
    model = await service.use(call, body.model)

    def counted() -> int:
        text = body.text(model, call, service.settings.tool_format)
        return len(model.tokenizer.encode(text, add_special=False))

    return json_response(InputTokens(await service.prepare_in_thread(model, counted)))


@Endpoint("GET", "/models", reply=ModelList, hidden=True)
async def models(http: HttpRequest) -> Response:
    """As /v1/models."""
    service = get_service(http)
    service.gate.check_started()
    return json_response(model_cards(service))
