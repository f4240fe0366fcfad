"""POST /v1/embeddings, in the bodies of OpenAI, vLLM, Jina and Voyage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import Values, checked_body, read_checked
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.generation import answer, respond_whole
from headrace.api.openai.embedding_schema import EmbeddingList, EmbeddingObject, EmbeddingUsage
from headrace.api.openai.prompts import INPUTS, is_mixed, read_inputs, with_tokens
from headrace.api.service import Service, get_service, new_id
from headrace.api.tasks.task_body import TruncatingBody
from headrace.api.tasks.task_reply import refuse_twins
from headrace.api.tasks.vector_format import EncodingFormat, VectorFormat, of_length, read_format
from headrace.inference.call_context import CallContext
from headrace.inference.events import Prepared
from headrace.inference.input_purpose import INPUT_TYPES, JINA_TASKS, InputPurpose, read_purpose
from headrace.inference.requests import EmbeddingRequest
from headrace.inference.result import ResultCollector
from headrace.inference.urgency import urgency
from headrace.tasks.embed import EmbedOptions, pooled
from headrace.tasks.vector_types import VectorType

JinaTask = Literal["retrieval.query", "retrieval.passage", "classification", "separation", "text-matching"]
_COUNT = Meta(ge=1, le=2**31 - 1)
_TWINS = (
    ("dimensions", "output_dimension"),
    ("truncate", "truncation"),
    ("normalize", "normalized"),
    ("input_type", "task"),
)


class EmbeddingBody(TruncatingBody, kw_only=True):
    """The body of a request for embeddings.

    Besides OpenAI's fields there are Voyage's (`input_type`, `truncation`, `output_dimension`,
    `output_dtype`), Jina's (`task`, `embedding_type`, `truncate`, `normalized`) and vLLM's (`normalize`,
    `truncate_prompt_tokens`). `prompt_name` is one of the model's prompts.
    """

    no_effect: ClassVar[Mapping[str, Values]] = {"user": ()}
    unsupported: ClassVar[Mapping[str, Values]] = {
        "late_chunking": (False,),
        "return_multivector": (False,),
        "add_special_tokens": (True,),
    }

    input: Annotated[Any, Meta(extra_json_schema=INPUTS)]
    model: str | None = None
    encoding_format: EncodingFormat | None = None
    output_dtype: VectorType | None = None
    embedding_type: EncodingFormat | list[EncodingFormat] | None = None
    encoding_type: EncodingFormat | None = None
    dimensions: Annotated[int, _COUNT] | None = None
    output_dimension: Annotated[int, _COUNT] | None = None
    prompt_name: str | None = None
    input_type: Literal["query", "document"] | None = None
    task: JinaTask | None = None
    truncate: bool | None = None
    truncation: bool | None = None
    normalize: bool | None = None
    normalized: bool | None = None

    async def request(self, reply_id: str, call: HttpCall, service: Service) -> EmbeddingRequest:
        """The request that this body stands for."""
        refuse_twins(self, *_TWINS)
        given = self.input
        if is_mixed(given):
            model = await service.use(call, self.model)
            given = await service.prepare_in_thread(model, lambda: with_tokens(given, model.tokenizer))
        options = EmbedOptions(
            dimensions=self.dimensions or self.output_dimension,
            prompt_name=self.prompt_name,
            purpose=self._purpose(),
            truncate=self.cut(self.truncate or self.truncation),
            priority=urgency(self.priority, self.service_tier),
            deadline_s=self.deadline_s,
        )
        return replace(options.request(self.model, read_inputs(given)), id=reply_id)

    def _purpose(self) -> InputPurpose | None:
        found = read_purpose("input_type", self.input_type, INPUT_TYPES)
        return found or read_purpose("task", self.task, JINA_TASKS)

    def reply(self) -> EmbeddingReply:
        """The format of the reply."""
        written = read_format(
            encoding_format=self.encoding_format,
            output_dtype=self.output_dtype,
            embedding_type=self.embedding_type,  # type: ignore[arg-type]
            encoding_type=self.encoding_type,
        )
        if self.normalized is not None:
            return EmbeddingReply(written, self.normalized, "normalized")
        return EmbeddingReply(written, self.normalize, "normalize")


class EmbeddingReply:
    """The format of the reply; vectors are brought to length 1 with `normalize`, which `param` has asked
    for."""

    def __init__(self, written: VectorFormat, normalize: bool | None, param: str) -> None:
        self._format, self._normalize, self._param = written, normalize, param

    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> EmbeddingList:
        """The vectors, in the order of the inputs."""
        rows = [one.embedding.vectors for one in result.prompts if one.embedding is not None]
        vectors = of_length(pooled(rows, 0), self._normalize, call, self._param)
        tokens = sum(usage.prompt_tokens for usage in result.usages)
        written = self._format.written(vectors, call)
        return EmbeddingList(
            id=call.new_id("embd"),
            data=[EmbeddingObject(index, one) for index, one in enumerate(written)],
            model=prepared.model,
            usage=EmbeddingUsage(tokens, tokens),
            warnings=call.warnings or msgspec.UNSET,
        )


@Endpoint("POST", "/v1/embeddings", body=EmbeddingBody, reply=EmbeddingList)
async def create_embeddings(http: HttpRequest) -> Response:
    """Vectors of texts. Each has length 1 unless the model says otherwise; no text is cut unless `truncate`
    asks for it."""
    body = await read_checked(EmbeddingBody, http)
    request = await body.request(new_id("embd"), call_of(http), get_service(http))
    return await respond_whole(http, request, body.reply())


async def embed(data: bytes, call: HttpCall, service: Service) -> msgspec.Struct | msgspec.Raw:
    """The endpoint without HTTP, for batches."""
    body = checked_body(EmbeddingBody, data, call)
    return await answer(service, await body.request(new_id("embd"), call, service), body.reply(), call)
