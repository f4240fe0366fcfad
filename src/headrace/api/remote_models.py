"""The models of a server that are answered elsewhere; without any, the extra `gateway` is not imported."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headrace.config.extras import extra_module
from headrace.config.providers import is_remote
from headrace.config.settings import Settings
from headrace.economy.budget_settings import read_budgets
from headrace.economy.price_overrides import read_overrides
from headrace.economy.prices import PriceBook
from headrace.economy.recorder import LedgerRecorder
from headrace.economy.route_prices import RoutePrices
from headrace.errors import InvalidRequest
from headrace.inference.attempts import Attempt, Hold, SpendRecorder
from headrace.inference.call_context import CallContext
from headrace.inference.handler import Handler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import ChatRequest
from headrace.providers.target import read_providers
from headrace.storage.database import Database
from headrace.storage.sql_store import SqlStore

if TYPE_CHECKING:
    from headrace.gateway.routes import Route
    from headrace.gateway.routing_handler import Before, Reroute, RoutingHandler
    from headrace.providers.batches.api import BatchApi

EXTRA = "gateway"
MAX_COUNTED = 2000
LIBRARIES = ("aiohttp", "cryptography", "jsonschema_rs")


class _Counted:
    """A SpendRecorder that counts the attempts that another one records."""

    def __init__(self, inner: SpendRecorder, attempts: Counter[str]) -> None:
        self.reserve, self.bounds = inner.reserve, inner.bounds
        self._inner, self._attempts = inner, attempts

    async def settle(self, hold: Hold, attempt: Attempt) -> int | None:
        """See `SpendRecorder.settle`."""
        counted = f"{attempt.target} {attempt.outcome}"
        if counted not in self._attempts and len(self._attempts) >= MAX_COUNTED:
            counted = f"other {attempt.outcome}"  # clients choose the names PROVIDER/MODEL
        self._attempts[counted] += 1
        return await self._inner.settle(hold, attempt)

    async def release(self, hold: Hold) -> None:
        """See `SpendRecorder.release`."""
        await self._inner.release(hold)

    async def keep(self, hold: Hold, lease_s: float) -> None:
        """See `SpendRecorder.keep`."""
        await self._inner.keep(hold, lease_s)


class RemoteModels:
    """What stands before `local`: see `gateway.routing_handler`, made when there is a remote model. `serves`
    knows the models of this machine."""

    def __init__(
        self,
        local: Handler,
        database: Database,
        serves: Callable[[str], bool],
        ledger: SqlStore | None = None,
    ) -> None:
        self._local, self._database, self._serves = local, database, serves
        self._ledger_store = database if ledger is None else ledger
        self._routing: RoutingHandler | None = None
        self.attempts: Counter[str] = Counter()
        """Attempts that have ended, by "TARGET OUTCOME"."""
        self.spend: SpendRecorder | None = None
        """What records attempts: the ledger, unless something else is set before the first update."""
        self._ledger: LedgerRecorder | None = None
        self._reroute: Reroute | None = None
        self._before_local: Before | None = None
        self.runner: ModelRunner | None = None
        """What runs models of this machine that look at requests; set before the first update."""

    @property
    def routes(self) -> Sequence[Route]:
        """The remote models."""
        return [] if self._routing is None else self._routing.routes

    @property
    def running(self) -> int:
        """Requests to remote models that have not ended."""
        return 0 if self._routing is None else self._routing.running

    def update(self, settings: Settings, entries: Mapping[str, object]) -> None:
        """Serve the remote models among `entries` of [models] from now on.

        Raises UsageError, also where the extra is not installed; then nothing changes.
        """
        remote = {name: entry for name, entry in entries.items() if is_remote(entry)}
        needs_none = not remote and self._reroute is None and not _names_directly(settings)
        if self._routing is None and needs_none:
            _check_unused(settings)
            return
        building = extra_module(EXTRA, "headrace.gateway.building", *LIBRARIES)
        prices, budgets = PriceBook(settings.prices), read_budgets(settings.budgets)
        if self.spend is None:
            self.spend = self._ledger = LedgerRecorder(
                *(self._ledger_store, prices, budgets), counts_local=not settings.node_usd_per_hour
            )
        routing: RoutingHandler = building.updated(
            *(self._routing, self._local, self._database, _Counted(self.spend, self.attempts), self._serves),
            *(settings, entries, int(time.time())),
            prices=RoutePrices(prices, self._ledger and self._ledger.budgets, settings.node_usd_per_hour),
            runner=self.runner,
        )
        self._routing = routing
        routing.reroute, routing.before_local = self._reroute, self._before_local
        if self._ledger is not None:
            self._ledger.configure(prices, budgets)

    def serve_students(
        self, local: Callable[[Handler], Handler], reroute: Reroute, before_local: Before
    ) -> None:
        """Put students in front of the models of this machine; `reroute` decides which requests they get, and
        `before_local` for which models of this machine it is asked. Before the first update."""
        self._local, self._reroute, self._before_local = local(self._local), reroute, before_local

    @property
    def routing(self) -> RoutingHandler | None:
        """The handler of the remote models; None without any."""
        return self._routing

    def find(self, name: str | None) -> Route | None:
        """The remote model of that name or alias."""
        return None if self._routing is None else self._routing.find(name)

    def batch_api(self, target: str) -> BatchApi | None:
        """The batches of a target's provider; None where there is no such target any more."""
        return None if self._routing is None else self._routing.batch_api(target)

    async def count_tokens(self, route: Route, request: ChatRequest, call: CallContext) -> int:
        """See `RoutingHandler.count_tokens`."""
        assert self._routing is not None
        return await self._routing.count_tokens(route, request, call)

    def check_local(self, name: str | None) -> None:
        """InvalidRequest where the name is a remote model's."""
        if self.find(name) is not None:
            raise InvalidRequest(
                f"{name!r} is a remote model: this needs a model of this machine", param="model"
            )

    @property
    def handler(self) -> Handler:
        """What answers requests, until the next update; without remote models nothing is in their way."""
        return self._routing or self._local

    async def close(self) -> None:
        """End what is running, close all connections, and book what is left."""
        if self._routing is not None:
            await self._routing.close()
        if self._ledger is not None:
            self._ledger.close()


def _names_directly(settings: Settings) -> bool:
    """Whether requests may name models of a provider. Where the extra is missing they may not: its table may
    be there for another machine."""
    if not settings.providers or any(find_spec(library) is None for library in LIBRARIES):
        return False
    return any(one.settings.direct for one in read_providers(settings.providers).values())


def _check_unused(settings: Settings) -> None:
    """UsageError for what is wrong in tables that no model needs yet: a mistake is told when it is made."""
    read_budgets(settings.budgets)
    read_overrides(settings.prices)
    read_providers(settings.providers)
