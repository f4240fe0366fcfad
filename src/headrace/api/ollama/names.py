"""From the name in a request to a model: one that is served, or an alias of one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request as HttpRequest

from headrace.api.call import call_of
from headrace.api.ollama.bodies import AnswerBody
from headrace.api.service import Service, get_service
from headrace.api.wire import ParameterWarning
from headrace.errors import InvalidRequest, ModelNotFound
from headrace.store.aliases import Alias, Aliases

if TYPE_CHECKING:
    from headrace.engine.load import LoadedModel

TAG = ":latest"  # what Ollama's clients put after a name that has no tag


@dataclass(frozen=True, slots=True)
class Used:
    """A model in use, under the name that the client gave. `load_s` was spent until it was there."""

    name: str
    model: LoadedModel
    alias: Alias | None
    load_s: float
    warnings: list[ParameterWarning]

    @property
    def system(self) -> str | None:
        """The alias's own system prompt."""
        return None if self.alias is None else self.alias.system

    @property
    def parameters(self) -> dict[str, Any]:
        """The alias's own options."""
        return {} if self.alias is None else dict(self.alias.parameters)


def in_memory(service: Service) -> list[LoadedModel]:
    """The models that are loaded."""
    return [service.model]


async def use_model(http: HttpRequest, body: AnswerBody) -> Used:
    """The model that `body` names, kept in memory as long as it says; ModelNotFound."""
    service, call = get_service(http), call_of(http)
    name = body.model.removesuffix(TAG)
    warnings = _keep_alive(body)
    start_s, alias = time.monotonic(), None
    try:
        model = await service.use(call, name)
    except ModelNotFound:
        alias = await service.off_loop(lambda: Aliases(service.database).find(name))
        if alias is None:
            raise
        model = await service.use(call, alias.target)
    return Used(body.model, model, alias, time.monotonic() - start_s, warnings)


def _keep_alive(body: AnswerBody) -> list[ParameterWarning]:
    """What becomes of `keep_alive` while a server keeps its one model until it ends."""
    keep_s = body.keep_alive_s
    if keep_s is None or keep_s < 0:
        return []
    if keep_s == 0 and body.asks_nothing:
        raise InvalidRequest(
            "this server keeps its model in memory until it ends: stop the server to free it",
            param="keep_alive",
            code="unsupported_parameter",
        )
    message = "keep_alive has no effect: this server keeps its model in memory until it ends"
    return [ParameterWarning("keep_alive", message)]
