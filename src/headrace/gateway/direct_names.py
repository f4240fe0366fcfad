"""Models that requests name as PROVIDER/MODEL, without an entry in `[models]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.config.providers import RemoteModelSettings
from headrace.errors import InvalidRequest
from headrace.gateway.routes import Route
from headrace.providers.target import Provider, RemoteTarget

MAX_NAME = 200
MAX_KEPT = 256
"""Routes that are remembered: clients choose the names."""
_FORBIDDEN = frozenset("\\?#%")


class DirectNames:
    """Finds routes of PROVIDER/MODEL. `serves` knows the models of this machine, which go first."""

    def __init__(self, providers: Mapping[str, Provider], serves: Callable[[str], bool]) -> None:
        self._providers = {name: one for name, one in providers.items() if one.settings.direct}
        self._serves = serves
        self._routes: dict[str, Route] = {}

    @property
    def providers(self) -> list[str]:
        """The providers whose models can be named so."""
        return list(self._providers)

    def find(self, name: str) -> Route | None:
        """The route of a name; None where it names none of these providers. InvalidRequest for a name of
        theirs that can be no model's."""
        provider, slash, model = name.partition("/")
        if not slash or provider not in self._providers or self._serves(name):
            return None
        if name not in self._routes:
            _check(name, model)
            if len(self._routes) >= MAX_KEPT:
                self._routes.pop(next(iter(self._routes)))
            target = RemoteTarget(name=name, provider=self._providers[provider], model=model)
            settings = RemoteModelSettings(provider=provider, model=model)
            self._routes[name] = Route(name=name, targets=(target,), settings=settings)
        return self._routes[name]


def _check(name: str, model: str) -> None:
    """InvalidRequest where the provider's part could be read as a path or a query."""
    parts = model.split("/")
    wrong = any(part in ("", ".", "..") for part in parts) or bool(_FORBIDDEN & set(model))
    if wrong or len(name) > MAX_NAME or not model.isprintable() or " " in model:
        raise InvalidRequest(
            f"model is {name[:60]!r}: what follows the provider must be a model's name, without empty parts, "
            f"'..', spaces or any of {' '.join(sorted(_FORBIDDEN))}, of at most {MAX_NAME} characters",
            param="model",
        )
