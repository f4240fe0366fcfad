"""POST /v2/embed and /v1/embed: vectors of texts, in several types at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.cohere.schema import CohereEmbeddings, CohereFloats, VectorsByType, meta_of
from headrace.api.http.body import RequestBody, Values, loose, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.openai.generation_body import Priority
from headrace.api.service import get_service, new_id
from headrace.api.tasks.task_reply import TEXT_LIST
from headrace.api.tasks.vector_format import EncodingFormat, read_format
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.input_purpose import INPUT_TYPES, read_purpose
from headrace.inference.requests import Truncation
from headrace.ops.value import Array
from headrace.tasks.embed import EmbedOptions, embed_texts
from headrace.tasks.task_limits import MAX_TEXTS, check_texts

InputType = Literal["search_document", "search_query", "classification", "clustering"]
_COUNT = Meta(ge=1, le=2**31 - 1)
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_INPUTS = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_TEXTS,
    "items": {
        "type": "object",
        "properties": {"content": {"type": "array", "items": _PART, "minItems": 1}},
        "required": ["content"],
        "additionalProperties": False,
    },
}


class EmbedBody(RequestBody, kw_only=True):
    """Texts, or `inputs` of content parts that are texts. What is too long is refused unless `truncate` is
    END or START."""

    unsupported: ClassVar[Mapping[str, Values]] = {"images": ([],)}

    texts: Annotated[list[str] | None, loose(TEXT_LIST)] = None
    inputs: Annotated[Any, loose(_INPUTS)] = None
    model: str | None = None
    input_type: InputType | None = None
    embedding_types: Annotated[list[EncodingFormat], Meta(min_length=1, max_length=6)] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    max_tokens: Annotated[int, _COUNT] | None = None
    output_dimension: Annotated[int, _COUNT] | None = None
    priority: Priority = 0

    def given(self) -> list[str]:
        """The texts; raises InvalidRequest."""
        if (self.texts is None) == (self.inputs is None):
            raise InvalidRequest(
                "send either texts or inputs", param="texts", code="missing_required_parameter"
            )
        if self.texts is not None:
            check_texts(self.texts, "texts")
            return self.texts
        given: object = self.inputs
        entries = cast("list[object]", given) if isinstance(given, list) else []
        check_texts(entries, "inputs")
        return [_joined(one, index) for index, one in enumerate(entries)]

    def options(self) -> EmbedOptions:
        """How texts are read."""
        return EmbedOptions(
            dimensions=self.output_dimension,
            purpose=read_purpose("input_type", self.input_type, INPUT_TYPES),
            truncate=Truncation(side="left") if self.truncate == "START" else self.truncate == "END",
            max_tokens=self.max_tokens,
            priority=self.priority,
        )


def _joined(value: object, index: int) -> str:
    """The text of the parts of an input."""
    given = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    parts = given.get("content")
    if given.keys() != {"content"} or not isinstance(parts, list) or not parts:
        raise InvalidRequest(
            f"inputs[{index}] must be an object with content, a list of parts", param="inputs"
        )
    found: list[str] = []
    for part in cast("list[object]", parts):
        fields = cast("dict[str, object]", part) if isinstance(part, dict) else {}
        text = fields.get("text")
        if fields.keys() != {"type", "text"} or fields["type"] != "text" or not isinstance(text, str):
            raise InvalidRequest(
                f"inputs[{index}] has a part that is no text: encoders of this server read text only",
                param="inputs",
            )
        found.append(text)
    return "".join(found)


def _by_type(vectors: Array, types: list[EncodingFormat], call: CallContext) -> VectorsByType:
    found = {kind: read_format(embedding_types=kind).written(vectors, call) for kind in dict.fromkeys(types)}
    return VectorsByType(**{"float_" if kind == "float" else kind: rows for kind, rows in found.items()})


async def _embedded(http: HttpRequest, version: Literal["1", "2"]) -> Response:
    body = await read_checked(EmbedBody, http)
    texts, call = body.given(), call_of(http)
    work = embed_texts(get_service(http).runner, body.model, texts, call, body.options())
    vectors = await done(http, work)
    reply_id = new_id("embd")
    if version == "1" and body.embedding_types is None:
        return json_response(CohereFloats(reply_id, vectors.tolist(), texts, meta_of(call, version)))
    written = _by_type(vectors, body.embedding_types or ["float"], call)
    return json_response(CohereEmbeddings(reply_id, written, texts, meta_of(call, version)))


@Endpoint("POST", "/v2/embed", body=EmbedBody, reply=CohereEmbeddings)
async def embed_v2(http: HttpRequest) -> Response:
    """Vectors of texts in each of `embedding_types`, as Cohere's v2."""
    return await _embedded(http, "2")


@Endpoint("POST", "/v1/embed", body=EmbedBody, reply=(CohereEmbeddings, CohereFloats))
async def embed_v1(http: HttpRequest) -> Response:
    """As /v2/embed; without `embedding_types` a list of vectors, as Cohere's v1."""
    return await _embedded(http, "1")
