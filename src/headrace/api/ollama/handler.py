"""The path of a request of /api/chat and /api/generate: load or unload the model, or answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import cache_use, guard_names, targets_of, wishes_of
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.generation import respond
from headrace.api.ollama.bodies import AnswerBody
from headrace.api.ollama.delta import OllamaDelta
from headrace.api.ollama.model_names import ResolvedModel, unload_model, use_model
from headrace.api.ollama.options import in_words_of_ollama
from headrace.api.ollama.reply import OllamaReply, without_answer
from headrace.api.ollama.schema import OllamaLine
from headrace.errors import HeadraceError
from headrace.inference.requests import ChatRequest, CompletionRequest


async def answer(
    http: HttpRequest,
    body: AnswerBody,
    *,
    shape: Callable[[str, OllamaDelta], OllamaLine],
    make_request: Callable[[ResolvedModel, HttpCall], ChatRequest | CompletionRequest],
    gives_context: bool = False,
) -> Response:
    """Answer `body`. `shape` gives a part of the answer the endpoint's form. `gives_context`: the tokens of a
    conversation come back with its answer.
    """
    call = call_of(http)
    if body.unloads:
        await unload_model(http, body)
        return without_answer(shape(body.model, OllamaDelta()), 0.0, call.warnings, unloads=True)
    used = await use_model(http, body)
    if body.asks_nothing:
        return without_answer(shape(used.name, OllamaDelta()), used.load_s, call.warnings, unloads=False)
    try:
        request = make_request(used, call)
        reply = OllamaReply(
            lambda part: shape(used.name, part),
            gives_context=gives_context and isinstance(request, ChatRequest),
        )
        return await respond(http, request, reply, stream=body.streams)
    except HeadraceError as error:
        raise in_words_of_ollama(error) from None


def generation(body: AnswerBody, used: ResolvedModel, call: HttpCall) -> dict[str, Any]:
    """The fields that all generating requests have. Warnings of options go to `call`."""
    options, warnings = body.read_options(used.parameters)
    call.warnings += warnings
    more = {} if body.logprob_count is None else {"logprobs": body.logprob_count}
    return {
        "model": used.served_name,
        "keep_alive_s": body.keep_alive_s,
        "sampling": options.sampling() | more,
        "context_limit": options.num_ctx,
        "fit_context": True,
        "constraint": body.constraint(),
        "slo": targets_of(body.slo),
        "route": wishes_of(body.route),
        "guards": guard_names(body.guard),
        "cache": cache_use(body.cache),
    }
