"""POST /embedding: vectors of texts, in llama.cpp's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Raw
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, Values, loose, read_checked
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.generation import respond_whole
from headrace.api.llama_cpp.schema import LlamaEmbedding, listed
from headrace.api.openai.prompts import PROMPTS, read_prompts
from headrace.api.service import new_id
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import Prepared
from headrace.inference.requests import EmbeddingRequest
from headrace.inference.result import ResultCollector


class LlamaEmbeddingBody(RequestBody, kw_only=True):
    """Texts whose vectors are wanted, as `content` or as `input`."""

    unsupported: ClassVar[Mapping[str, Values]] = {"embd_normalize": (2,), "image_data": ([],)}
    model: str | None = None
    content: Annotated[Any, loose(PROMPTS)] = None
    input: Annotated[Any, loose(PROMPTS)] = None

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
    """A list of vectors, one for each text, of length 1 unless the model says otherwise."""
    body = await read_checked(LlamaEmbeddingBody, http)
    inputs = read_prompts(body.texts, "content")
    request = EmbeddingRequest(id=new_id("embd"), model=body.model, inputs=inputs)
    return await respond_whole(http, request, _Vectors())
