"""POST /completion and /completions: continue a text, in llama.cpp's words."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.event_stream import sse_content
from headrace.api.http.generation import respond
from headrace.api.llama_cpp.body import CompletionBody, GenerationBody
from headrace.api.llama_cpp.prompts import is_list
from headrace.api.llama_cpp.reply import LlamaReply
from headrace.api.llama_cpp.sampling import in_words_of_llama_cpp
from headrace.api.llama_cpp.schema import LlamaChunk, LlamaCompletion, listed
from headrace.api.service import get_service
from headrace.errors import HeadraceError

EVENTS = sse_content(
    "With stream: true an event for each step, and a last one for each completion.",
    LlamaChunk,
    LlamaCompletion,
    typed=False,
)
WHOLE = listed(LlamaCompletion, also_alone=True)


@Endpoint("POST", "/completion", body=CompletionBody, reply=LlamaCompletion, content=(WHOLE, EVENTS))
async def completion(http: HttpRequest) -> Response:
    """Continue one or several prompts; of a list a list comes back."""
    body = await read_checked(CompletionBody, http)
    return await complete(http, body, body.prompt)


@Endpoint(
    "POST", "/completions", body=CompletionBody, reply=LlamaCompletion, content=(WHOLE, EVENTS), hidden=True
)
async def completions(http: HttpRequest) -> Response:
    """The same under its other name; OpenAI's endpoint is /v1/completions."""
    body = await read_checked(CompletionBody, http)
    return await complete(http, body, body.prompt)


async def complete(
    http: HttpRequest, body: GenerationBody, prompt: object, suffix: str | None = None
) -> Response:
    """Run `body` for a prompt, with the text that comes after the gap where there is a `suffix`."""
    service, call = get_service(http), call_of(http)
    body.check_fields()
    model = await service.use(call, body.model)
    reply_id = call.new_id("cmpl")
    try:
        request = await service.prepare_in_thread(
            model, lambda: body.request_of(reply_id, model, prompt, suffix)
        )
        reply = LlamaReply(body, sorted(model.tokenizer.eos_ids), listed=is_list(prompt))
        return await respond(http, request, reply, stream=bool(body.stream))
    except HeadraceError as error:
        raise in_words_of_llama_cpp(error) from None
