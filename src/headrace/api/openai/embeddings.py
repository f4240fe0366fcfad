"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, Values, checked_body, read_checked
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.generation import answer, respond_whole
from headrace.api.openai.generation_body import Deadline, Priority, ServiceTier, urgency
from headrace.api.openai.prompts import INPUTS, is_mixed, read_inputs, with_tokens
from headrace.api.openai.schema import EmbeddingList, EmbeddingObject, EmbeddingUsage
from headrace.api.service import Service, get_service, new_id
from headrace.engine.request import Embedding
from headrace.inference.call_context import CallContext
from headrace.inference.events import Prepared
from headrace.inference.requests import EmbeddingRequest
from headrace.inference.result import ResultCollector
from headrace.tasks.embed import check_pooled


class EmbeddingBody(RequestBody, kw_only=True):
    """The body of a request for embeddings."""

    no_effect: ClassVar[Mapping[str, Values]] = {"user": ()}

    input: Annotated[Any, Meta(extra_json_schema=INPUTS)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    priority: Priority | None = None
    service_tier: ServiceTier | None = None
    deadline_s: Deadline | None = None

    async def request(self, reply_id: str, call: HttpCall, service: Service) -> EmbeddingRequest:
        """The request that this body stands for."""
        given = self.input
        if is_mixed(given):
            model = await service.use(call, self.model)
            given = await service.prepare_in_thread(model, lambda: with_tokens(given, model.tokenizer))
        return EmbeddingRequest(
            id=reply_id,
            model=self.model,
            priority=urgency(self.priority, self.service_tier),
            deadline_s=self.deadline_s,
            inputs=read_inputs(given),
            dimensions=self.dimensions,
        )

    def reply(self) -> EmbeddingReply:
        """The format of the reply."""
        return EmbeddingReply(as_base64=self.encoding_format == "base64")


class EmbeddingReply:
    """The format of the reply."""

    def __init__(self, *, as_base64: bool) -> None:
        self._as_base64 = as_base64

    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> EmbeddingList:
        """The vectors, in the order of the inputs."""
        vectors = [one.embedding for one in result.prompts if one.embedding is not None]
        check_pooled([one.vectors for one in vectors])
        tokens = sum(usage.prompt_tokens for usage in result.usages)
        return EmbeddingList(
            data=[EmbeddingObject(index, self._written(vector)) for index, vector in enumerate(vectors)],
            model=prepared.model,
            usage=EmbeddingUsage(tokens, tokens),
            warnings=call.warnings or msgspec.UNSET,
        )

    def _written(self, vector: Embedding) -> str | list[float]:
        return base64.b64encode(vector.data).decode() if self._as_base64 else vector.vectors[0].tolist()


@Endpoint("POST", "/v1/embeddings", body=EmbeddingBody, reply=EmbeddingList)
async def create_embeddings(http: HttpRequest) -> Response:
    """Vectors of texts. Each has length 1 unless the model says otherwise; no text is ever cut."""
    body = await read_checked(EmbeddingBody, http)
    request = await body.request(new_id("embd"), call_of(http), get_service(http))
    return await respond_whole(http, request, body.reply())


async def embed(data: bytes, call: HttpCall, service: Service) -> msgspec.Struct | msgspec.Raw:
    """The endpoint without HTTP, for batches."""
    body = checked_body(EmbeddingBody, data, call)
    return await answer(service, await body.request(new_id("embd"), call, service), body.reply(), call)
