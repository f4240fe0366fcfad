"""POST /v1beta/models/{model}:embedContent and :batchEmbedContents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.google.body import Content
from headrace.api.google.generate import MODEL
from headrace.api.google.schema import BatchEmbedReply, EmbedReply, Values
from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.service import get_service
from headrace.errors import InvalidRequest
from headrace.inference.input_purpose import GOOGLE_TASKS, read_purpose
from headrace.tasks.embed import EmbedOptions, embed_texts
from headrace.tasks.task_limits import MAX_TEXTS

TaskType = Literal[
    "TASK_TYPE_UNSPECIFIED",
    "RETRIEVAL_QUERY",
    "RETRIEVAL_DOCUMENT",
    "SEMANTIC_SIMILARITY",
    "CLASSIFICATION",
    "CLUSTERING",
    "QUESTION_ANSWERING",
    "FACT_VERIFICATION",
    "CODE_RETRIEVAL_QUERY",
]


class EmbedContentBody(RequestBody, kw_only=True, rename="camel"):
    """A text to embed; its title is a part of it."""

    content: Content
    model: Annotated[str | None, Meta(description="Has no effect: the path names the model.")] = None
    task_type: TaskType | None = None
    title: str | None = None
    output_dimensionality: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    auto_truncate: bool | None = None


class EmbedItem(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One of several texts to embed."""

    content: Content
    model: str | None = None
    task_type: TaskType | None = None
    title: str | None = None
    output_dimensionality: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    auto_truncate: bool | None = None


class BatchEmbedBody(RequestBody, kw_only=True):
    """Texts to embed, all with one purpose and one number of dimensions."""

    requests: Annotated[list[EmbedItem], Meta(min_length=1, max_length=MAX_TEXTS)]


@Endpoint("POST", f"{MODEL}:embedContent", body=EmbedContentBody, reply=EmbedReply)
async def embed_content(http: HttpRequest, model: str) -> Response:
    """The vector of a text."""
    body = await read_checked(EmbedContentBody, http)
    [vector] = await _vectors(http, model, [body])
    return json_response(EmbedReply(Values(vector)))


@Endpoint("POST", f"{MODEL}:batchEmbedContents", body=BatchEmbedBody, reply=BatchEmbedReply)
async def batch_embed_contents(http: HttpRequest, model: str) -> Response:
    """The vectors of texts."""
    body = await read_checked(BatchEmbedBody, http)
    vectors = await _vectors(http, model, body.requests)
    return json_response(BatchEmbedReply([Values(vector) for vector in vectors]))


async def _vectors(
    http: HttpRequest, model: str, items: Sequence[EmbedItem | EmbedContentBody]
) -> list[list[float]]:
    kinds = {(one.task_type, one.output_dimensionality, bool(one.auto_truncate)) for one in items}
    if len(kinds) > 1:
        raise InvalidRequest(
            "requests differ in taskType, outputDimensionality or autoTruncate: send one kind at a time",
            param="requests",
        )
    [(task, dimensions, truncate)] = kinds
    given = None if task == "TASK_TYPE_UNSPECIFIED" else task
    purpose = read_purpose("taskType", given, GOOGLE_TASKS)
    options = EmbedOptions(dimensions=dimensions, purpose=purpose, truncate=truncate)
    texts = [_text_of(one) for one in items]
    found = await done(http, embed_texts(get_service(http).runner, model, texts, call_of(http), options))
    return found.tolist()


def _text_of(item: EmbedItem | EmbedContentBody) -> str:
    texts = [part.text for part in item.content.parts]
    if not texts or None in texts:
        raise InvalidRequest("content has a part that is no text: texts are embedded here", param="content")
    return "\n".join(filter(None, (item.title, *texts)))
