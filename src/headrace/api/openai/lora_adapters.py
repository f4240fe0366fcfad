"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's shape: adapters without a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from headrace.adapt.students.rungs.names import PREFIX
from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.service import Service, get_service
from headrace.errors import InvalidRequest, NotEnabled
from headrace.inference.adapted_engine import adapted_name

OFF = {501: "Adapters cannot be loaded over HTTP here."}
_TEXT = (Content("text/plain", {"type": "string"}),)


class LoadAdapterBody(RequestBody, kw_only=True):
    """`lora_path` is a folder of PEFT or a GGUF adapter in the server's `adapter_dir`. Requests then ask for
    the model `model:lora_name`."""

    lora_name: Annotated[str, Meta(min_length=1, max_length=128)]
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]
    model: Annotated[str, Meta(description="Its base; the default model where it is left out.")] | None = None
    load_inplace: Annotated[
        bool, Meta(description="Take the place of a loaded adapter of that name, whose requests go on.")
    ] = False


class UnloadAdapterBody(RequestBody, kw_only=True):
    """Requests that use the adapter go on to their end."""

    lora_name: Annotated[str, Meta(min_length=1, max_length=128)]
    model: Annotated[str, Meta(description="Its base; the default model where it is left out.")] | None = None


@Endpoint("POST", "/v1/load_lora_adapter", body=LoadAdapterBody, content=_TEXT, errors=OFF)
async def load_lora_adapter(http: HttpRequest) -> Response:
    """Load an adapter from the folder `adapter_dir`; needs a key with the scope admin."""
    service = get_service(http)
    folder = adapter_folder(service)
    body = await read_checked(LoadAdapterBody, http)
    if body.lora_name.startswith(PREFIX):
        raise InvalidRequest(f"names that begin with {PREFIX} are those of students", param="lora_name")
    entry = service.find(body.model, call_of(http))
    path = await asyncio.to_thread(_confined, folder, body.lora_path)
    await service.models.load_adapter(entry, body.lora_name, path, in_place=body.load_inplace)
    call_of(http).model = adapted_name(entry.name, body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@Endpoint("POST", "/v1/unload_lora_adapter", body=UnloadAdapterBody, content=_TEXT, errors=OFF)
async def unload_lora_adapter(http: HttpRequest) -> Response:
    """Unload an adapter; needs a key with the scope admin."""
    service = get_service(http)
    adapter_folder(service)
    body = await read_checked(UnloadAdapterBody, http)
    entry = service.find(body.model, call_of(http))
    await entry.adapters.unload(entry.model, body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def adapter_folder(service: Service) -> Path:
    """The folder of adapters. NotEnabled without one, and on a server that anybody may ask."""
    folder = service.settings.adapter_dir
    if folder is None:
        raise NotEnabled("adapters cannot be loaded over HTTP: start the server with --adapter-dir FOLDER")
    if not service.keys.required:
        raise NotEnabled(
            "adapters cannot be loaded over HTTP on a server without keys: start it with --admin-api-key, or"
            " make a key with `headrace keys add NAME --scope admin`"
        )
    return folder


def _confined(folder: Path, given: str) -> Path:
    """The path inside the folder, links resolved. InvalidRequest for any other, which says nothing of it."""
    try:
        root = folder.resolve()
        path = (root / given).resolve()
    except (OSError, ValueError, RuntimeError):
        path = root = Path("/")
    if root == Path("/") or path == root or not path.is_relative_to(root):
        raise InvalidRequest(
            f"lora_path {given[:200]!r} is not in the server's adapter_dir: give a path in it",
            param="lora_path",
        )
    return path
