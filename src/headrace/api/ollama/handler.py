"""The way of a request of /api/chat and /api/generate: load or unload the model, prepare, answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.ollama.bodies import AnswerBody
from headrace.api.ollama.delta import OutputDelta
from headrace.api.ollama.model_names import ResolvedModel, unload_model, use_model
from headrace.api.ollama.reply import PreparedRequest, respond, without_answer
from headrace.api.ollama.schema import OllamaLine
from headrace.api.openai.schema import ParameterWarning
from headrace.api.service import get_service, key_salt
from headrace.chat.prompt import ChatPrompt
from headrace.engine.request import EngineRequest

# The engine request, the conversation where a template made it, warnings.
Prepared = tuple[EngineRequest, ChatPrompt | None, list[ParameterWarning]]


async def answer(
    http: HttpRequest,
    body: AnswerBody,
    warnings: list[ParameterWarning],
    *,
    shape: Callable[[str, OutputDelta], OllamaLine],
    prepare: Callable[[ResolvedModel, str | None, str], Prepared],
    gives_context: bool = False,
) -> Response:
    """Answer `body`. `shape` gives a part of the model's answer the endpoint's form; `prepare` takes the
    model, the name of its tool format and the salt, and runs beside the event loop. `gives_context`: a
    conversation's tokens come back with its answer.
    """
    service, call = get_service(http), call_of(http)
    if body.unloads:
        await unload_model(http, body)
        return without_answer(shape(body.model, OutputDelta()), 0.0, warnings, unloads=True)
    used = await use_model(http, body)
    if body.asks_nothing:
        return without_answer(shape(used.name, OutputDelta()), used.load_s, used.warnings, unloads=False)
    cache_salt = key_salt(http, None)
    prepared = await service.run_in_thread(lambda: prepare(used, service.settings.tool_format, cache_salt))
    request, conversation, more = prepared
    asked = PreparedRequest(
        request=request,
        parser=None if conversation is None or conversation.plain else conversation.parser(),
        shape=lambda part: shape(used.name, part),
        before_s=time.monotonic() - call.arrival_s,
        load_s=used.load_s,
        warnings=[*warnings, *used.warnings, *more],
        gives_context=gives_context and conversation is not None,
    )
    return await respond(http, used.model, asked, stream=body.streams)
