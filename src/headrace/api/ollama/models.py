"""Which models there are: /api/tags, /api/show, /api/ps and /api/version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace import __version__
from headrace.api.http.body import Values, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.ollama.bodies import ModelBody
from headrace.api.ollama.catalog import CatalogEntry, entries, find_entry
from headrace.api.ollama.model_names import TAG
from headrace.api.ollama.schema import (
    OllamaDetails,
    OllamaModel,
    OllamaProcesses,
    OllamaRunning,
    OllamaShow,
    OllamaTags,
    OllamaVersion,
    timestamp,
)
from headrace.api.ollama.thinking import thinks
from headrace.api.service import Service, get_service
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.loading.model_card import license
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import model_of
from headrace.loading.text_assets import load_text_assets
from headrace.models.registry import Model
from headrace.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel
    from headrace.gateway.routes import Route
    from headrace.workers.model_entry import ModelEntry as ServedEntry

FOREVER = "9999-12-31T23:59:59Z"


class ShowBody(ModelBody):
    """The body of /api/show."""

    no_effect: ClassVar[Mapping[str, Values]] = {"verbose": (False,)}


@Endpoint("GET HEAD", "/api/version", reply=OllamaVersion)
async def version(http: HttpRequest) -> Response:
    """Headrace's version."""
    return json_response(OllamaVersion(__version__))


@Endpoint("GET HEAD", "/api/tags", reply=OllamaTags)
async def tags(http: HttpRequest) -> Response:
    """The models on this machine: served, shipped, in the hub's cache, and aliases."""
    service = get_service(http)
    found = await service.run_in_thread(lambda: entries(service))
    remote = [_remote_model(route) for route in service.remote.routes]
    return json_response(OllamaTags([*(_model(entry) for entry in found), *remote]))


@Endpoint("GET", "/api/ps", reply=OllamaProcesses)
async def processes(http: HttpRequest) -> Response:
    """The models in memory."""
    service = get_service(http)
    loaded = [(entry, entry.model) for entry in service.models.entries if entry.model is not None]
    ends = [_expiry(entry) for entry, _ in loaded]
    found = await service.run_in_thread(
        lambda: [
            _running(find_entry(service, entry.name), model, end)
            for (entry, model), end in zip(loaded, ends, strict=True)
        ]
    )
    return json_response(OllamaProcesses(found))


@Endpoint("POST", "/api/show", body=ShowBody, reply=OllamaShow)
async def show(http: HttpRequest) -> Response:
    """What a model is."""
    service = get_service(http)
    body = await read_checked(ShowBody, http)
    service.remote.check_local(body.model.removesuffix(TAG))
    shown = await service.run_in_thread(lambda: _shown(service, body.model))
    return json_response(msgspec.structs.replace(shown, warnings=call_of(http).warnings or UNSET))


def _model(entry: CatalogEntry) -> OllamaModel:
    return OllamaModel(
        name=entry.name,
        model=entry.name,
        modified_at=timestamp(entry.modified_s),
        size=entry.size_bytes,
        digest=entry.digest,
        details=entry.details,
    )


def _remote_model(route: Route) -> OllamaModel:
    return OllamaModel(
        name=route.name,
        model=route.name,
        modified_at=timestamp(route.created_s),
        size=0,
        digest="",
        details=OllamaDetails(format="remote"),
        remote_host=",".join(route.owners),
    )


def _expiry(entry: ServedEntry) -> str:
    """When the model will be unloaded if nobody uses it again."""
    if entry.fixed or entry.keep_alive_s < 0:
        return FOREVER
    waits_s = entry.keep_alive_s
    if entry.timer is not None:
        waits_s = entry.timer.when() - asyncio.get_running_loop().time()
    return timestamp(time.time() + waits_s)


def _running(entry: CatalogEntry, model: LoadedModel, expires_at: str) -> OllamaRunning:
    return OllamaRunning(
        name=entry.name,
        model=entry.name,
        size=model.plan.total_bytes,
        digest=entry.digest,
        details=entry.details,
        expires_at=expires_at,
        size_vram=0,
        context_length=model.context_length,
    )


def _shown(service: Service, name: str) -> OllamaShow:
    entry = find_entry(service, name)
    alias = entry.alias
    with open_checkpoint(entry.path) as checkpoint:
        _, template = load_text_assets(entry.path, checkpoint.metadata)
        text = (
            license(entry.path, checkpoint.metadata) if alias is None or not alias.license else alias.license
        )
        model, _ = model_of(checkpoint.config, entry.path, EngineOptions())
    own = {} if alias is None else dict(alias.parameters)
    return OllamaShow(
        modified_at=timestamp(entry.modified_s),
        details=entry.details,
        model_info=_model_info(model, entry.parameters),
        capabilities=_capabilities(template, encodes=model.pooling is not None),
        parameters="\n".join(f"{key} {value}" for key, value in own.items()),
        modelfile=f"FROM {entry.name if alias is None else alias.target}\n",
        license=text or UNSET,
        template=UNSET if template is None else template.source,
        system=UNSET if alias is None or alias.system is None else alias.system,
    )


def _model_info(model: Model, parameters: int) -> dict[str, Any]:
    """Sizes under the names that GGUF files have for them."""
    sizes, kind = model.config, model.model_type
    return {
        "general.architecture": kind,
        "general.parameter_count": parameters,
        f"{kind}.context_length": sizes.context,
        f"{kind}.embedding_length": sizes.hidden,
        f"{kind}.block_count": sizes.layers,
        f"{kind}.attention.head_count": sizes.heads,
        f"{kind}.attention.head_count_kv": sizes.kv_heads,
        f"{kind}.vocab_size": sizes.vocabulary,
    }


def _capabilities(template: ChatTemplate | None, *, encodes: bool) -> list[str]:
    if encodes:
        return ["embedding"]
    found = ["completion"]
    if template is not None and "tools" in template.reads:
        found.append("tools")
    return [*found, "thinking"] if thinks(template) else found
