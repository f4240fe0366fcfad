"""The routing handler as the settings want it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.config.settings import Settings
from headrace.gateway.gate import GateStore
from headrace.gateway.routes import read_routes
from headrace.gateway.routing_handler import RoutingHandler
from headrace.inference.attempts import SpendRecorder
from headrace.inference.handler import Handler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.price_source import PriceSource
from headrace.providers.key_store import KeyStore
from headrace.providers.target import read_providers
from headrace.storage.database import Database


def updated(
    routing: RoutingHandler | None,
    local: Handler,
    database: Database,
    spend: SpendRecorder,
    serves: Callable[[str], bool],
    settings: Settings,
    entries: Mapping[str, object],
    now_s: int,
    prices: PriceSource | None = None,
    runner: ModelRunner | None = None,
) -> RoutingHandler:
    """`routing`, or a new one, with the providers of `settings` and the routes among `entries` of [models].
    UsageError says what is wrong with these."""
    providers = read_providers(settings.providers)
    routes = read_routes(entries, providers, serves=serves, now_s=now_s)
    routing = routing or RoutingHandler(
        *(local, KeyStore(database).key_of, spend), prices=prices, runner=runner, gates=GateStore(database)
    )
    routing.planner.prices = prices or routing.planner.prices
    routing.update(routes, providers, serves)
    return routing
