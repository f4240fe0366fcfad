"""POST /pooling: what a model's output rows say, in vLLM's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import Values, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.openai.embedding_schema import EmbeddingUsage
from headrace.api.openai.prompts import INPUTS, read_inputs
from headrace.api.service import get_service, new_id, now_s
from headrace.api.tasks.task_body import TruncatingBody
from headrace.api.tasks.task_reply import refuse_twins, usage_of
from headrace.api.tasks.vector_format import as_base64
from headrace.inference.events import ParameterWarning
from headrace.ops.value import Array
from headrace.tasks.pooling import PoolingTask, pool
from headrace.tasks.task_limits import MAX_NUMBERS

_ACTIVATIONS = ("use_activation", "activation", "softmax")


class PoolingBody(TruncatingBody, kw_only=True):
    """Texts or token ids. Without `task` the model's own; scores are probabilities unless `use_activation`
    (earlier names: `activation`, `softmax`) is false."""

    no_effect: ClassVar[Mapping[str, Values]] = {"user": ()}
    unsupported: ClassVar[Mapping[str, Values]] = {"add_special_tokens": (True,), "normalize": (True,)}

    input: Annotated[Any, Meta(extra_json_schema=INPUTS)]
    model: str | None = None
    task: PoolingTask | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    truncate: bool | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None

    def is_activated(self) -> bool:
        """Whether scores become probabilities; raises InvalidRequest where two names say something."""
        refuse_twins(self, _ACTIVATIONS)
        return False not in (self.use_activation, self.activation, self.softmax)


class PooledInput(Struct, frozen=True):
    """Of the input at `index` a vector, one for each token, or these as base64 of little-endian float32."""

    index: int
    data: Annotated[Any, Meta(extra_json_schema={"type": ["array", "string"]})]
    object: Literal["pooling"] = "pooling"


class PoolingReply(Struct, frozen=True):
    """The inputs, in their order."""

    id: str
    created: int
    model: str
    data: list[PooledInput]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
    warnings: list[ParameterWarning] | UnsetType = UNSET


@Endpoint("POST", "/pooling", body=PoolingBody, reply=PoolingReply)
async def create_pooling(http: HttpRequest) -> Response:
    """A vector of each text, or of each of its tokens; scores of its labels, or of those of its tokens."""
    body = await read_checked(PoolingBody, http)
    call = call_of(http)
    work = pool(
        body.runner(get_service(http)),
        body.model,
        read_inputs(body.input),
        call,
        task=body.task,
        activation=body.is_activated(),
        dimensions=body.dimensions,
        truncate=body.cut(body.truncate),
        most=MAX_NUMBERS,
    )
    found = await done(http, work)

    def write() -> bytes:
        data = [PooledInput(index, _written(one, body.encoding_format)) for index, one in enumerate(found)]
        reply = PoolingReply(
            new_id("pool"), now_s(), call.model, data, usage_of(call), warnings=call.warnings or UNSET
        )
        return msgspec.json.encode(reply)

    return json_response(Raw(await get_service(http).search_in_thread(write)))


def _written(rows: Array, form: str | None) -> Any:
    return as_base64(rows) if form == "base64" else rows.tolist()
