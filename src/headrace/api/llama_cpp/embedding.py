"""POST /embedding and /embeddings: vectors of texts, in llama.cpp's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Raw
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, Values, loose, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.generation import respond_whole
from headrace.api.llama_cpp.schema import LlamaEmbedding, listed
from headrace.api.openai.prompts import INPUTS, is_mixed, read_inputs, with_tokens
from headrace.api.service import get_service, new_id
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import Prepared
from headrace.inference.requests import EmbeddingRequest
from headrace.inference.result import ResultCollector


class LlamaEmbeddingBody(RequestBody, kw_only=True):
    """Texts whose vectors are wanted, as `content` or as `input`."""

    unsupported: ClassVar[Mapping[str, Values]] = {"embd_normalize": (2,), "image_data": ([],)}
    model: str | None = None
    content: Annotated[Any, loose(INPUTS)] = None
    input: Annotated[Any, loose(INPUTS)] = None

    @property
    def texts(self) -> object:
        """What was sent, under either name."""
        if (self.content is None) == (self.input is None):
            raise InvalidRequest(
                "send either content or input", param="content", code="missing_required_parameter"
            )
        return self.input if self.content is None else self.content


class _Vectors:
    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> Raw:
        found = [one.embedding.vectors.tolist() for one in result.prompts if one.embedding is not None]
        return Raw(msgspec.json.encode([LlamaEmbedding(index, rows) for index, rows in enumerate(found)]))


@Endpoint(
    "POST", "/embedding", body=LlamaEmbeddingBody, reply=LlamaEmbedding, content=(listed(LlamaEmbedding),)
)
async def embedding(http: HttpRequest) -> Response:
    """A list of vectors, one for each text, of length 1 unless the model says otherwise; by a model without
    pooling those of its tokens."""
    return await _embedded(http)


@Endpoint(
    "POST",
    "/embeddings",
    body=LlamaEmbeddingBody,
    reply=LlamaEmbedding,
    content=(listed(LlamaEmbedding),),
    hidden=True,
)
async def embeddings(http: HttpRequest) -> Response:
    """The same under its other name; OpenAI's endpoint is /v1/embeddings."""
    return await _embedded(http)


async def _embedded(http: HttpRequest) -> Response:
    service, call = get_service(http), call_of(http)
    body = await read_checked(LlamaEmbeddingBody, http)
    texts = body.texts
    if is_mixed(texts):
        model = await service.use(call, body.model)
        texts = await service.prepare_in_thread(model, lambda: with_tokens(body.texts, model.tokenizer))
    request = EmbeddingRequest(id=new_id("embd"), model=body.model, inputs=read_inputs(texts))
    return await respond_whole(http, request, _Vectors())
