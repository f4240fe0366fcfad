"""From the name in a request to a model: one that is served, or an alias of one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from starlette.requests import Request as HttpRequest

from headrace.api.http.call_context import call_of
from headrace.api.ollama.bodies import AnswerBody, UsingBody
from headrace.api.service import Service, get_service
from headrace.inference.adapted_engine import adapted_name
from headrace.inference.limits import allowed_keep_alive
from headrace.storage.aliases import Alias

if TYPE_CHECKING:
    from headrace.workers.model_entry import ModelEntry

TAG = ":latest"  # what Ollama's clients put after a name that has no tag


class ResolvedModel(Struct, frozen=True):
    """A model in use, under the name that the client gave. `load_s` was spent until it was there.

    `served_name` is the name that requests of this server give it. `is_chat`: it answers conversations.
    """

    name: str
    served_name: str
    alias: Alias | None
    load_s: float
    is_chat: bool = True

    @property
    def system(self) -> str | None:
        """The alias's own system prompt."""
        return None if self.alias is None else self.alias.system

    @property
    def parameters(self) -> dict[str, Any]:
        """The alias's own options."""
        return {} if self.alias is None else dict(self.alias.parameters)


async def use_model(http: HttpRequest, body: UsingBody) -> ResolvedModel:
    """The model that `body` names, kept in memory as long as it says; ModelNotFound."""
    service, call, start_s = get_service(http), call_of(http), time.monotonic()
    route = service.remote.find(body.model.removesuffix(TAG))
    if route is not None:
        return ResolvedModel(body.model, route.name, None, 0.0)
    entry, alias = _find(service, body.model)
    keep_alive_s = allowed_keep_alive(body.keep_alive_s, call)
    model = await service.use(call, entry.name, keep_alive_s=keep_alive_s)
    if entry.fixed and keep_alive_s is not None and keep_alive_s >= 0:
        message = "keep_alive has no effect: the model belongs to the program that started this server"
        call.warn("keep_alive", message)
    load_s = time.monotonic() - start_s
    adapted = service.sources.adapted(body.model.removesuffix(TAG))
    name = model.name if adapted is None else adapted_name(entry.name, adapted[1].name)
    return ResolvedModel(body.model, name, alias, load_s, is_chat=model.template is not None)


async def unload_model(http: HttpRequest, body: AnswerBody) -> None:
    """Free the memory of the model that `body` names, as soon as nothing uses it. Needs the scope admin."""
    service = get_service(http)
    call_of(http).account.require("admin")
    service.remote.check_local(body.model.removesuffix(TAG))
    entry, _ = _find(service, body.model)
    await service.models.unload_when_idle(entry)


def _find(service: Service, name: str) -> tuple[ModelEntry, Alias | None]:
    """The served model of that name or of that alias; ModelNotFound."""
    name = name.removesuffix(TAG)
    return service.find(name), service.sources.alias_of(name)
