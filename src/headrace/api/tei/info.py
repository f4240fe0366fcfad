"""GET /info: the served encoder and the server's limits, in the shape of text-embeddings-inference (TEI)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace import __version__
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.service import Service, get_service
from headrace.inference.call_context import CallContext
from headrace.tasks.task_limits import MAX_TEXTS
from headrace.weights.head import TaskName

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

_ENCODES: tuple[TaskName, ...] = ("embed", "token_embed", "sparse_embed", "classify", "token_classify")


class TeiInfo(Struct, frozen=True):
    """`model_type` has one key: `embedding`, `classifier`, `reranker`, or what else the model can do. What is
    null is not known here, or has no limit."""

    model_id: str
    model_type: dict[str, dict[str, Any]]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    version: str
    max_client_batch_size: int = MAX_TEXTS
    max_batch_requests: int | None = None
    auto_truncate: bool = False
    tokenization_workers: int = 2
    model_sha: str | None = None
    model_dtype: str | None = None
    sha: str | None = None
    docker_label: str | None = None
    prompts: dict[str, str] | None = None
    default_prompt_name: str | None = None


@Endpoint("GET", "/info", reply=TeiInfo)
async def show_info(http: HttpRequest) -> Response:
    """The first served encoder; without one, the default model."""
    return json_response(await done(http, _info(get_service(http), call_of(http))))


async def _info(service: Service, call: CallContext) -> TeiInfo:
    async with service.runner.lease(service.runner.able(*_ENCODES), call) as model:
        return TeiInfo(
            model_id=model.name,
            model_type=_type(model),
            max_concurrent_requests=service.settings.max_concurrent_requests,
            max_input_length=model.context_length,
            max_batch_tokens=model.plan.step_tokens,
            version=__version__,
            prompts=model.input_rules.prompts or None,
            default_prompt_name=model.input_rules.default,
        )


def _type(model: LoadedModel) -> dict[str, dict[str, Any]]:
    if "classify" not in model.tasks:
        kind = "embedding" if {"embed", "token_embed", "sparse_embed"} & set(model.tasks) else model.tasks[0]
        return {kind: {}}
    assert model.head is not None
    labels = dict(enumerate(model.head.labels))
    names = {"id2label": {str(key): label for key, label in labels.items()}}
    return {
        "reranker" if "rerank" in model.tasks else "classifier": names
        | {"label2id": {label: key for key, label in labels.items()}}
    }
