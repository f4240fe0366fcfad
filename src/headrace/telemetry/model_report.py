"""What the metrics of a model are made of."""

from __future__ import annotations

from msgspec import Struct

from headrace.engine.client import EngineStatus
from headrace.telemetry.request_metrics import ModelMetrics


class ModelReport(Struct, frozen=True, kw_only=True):
    """Inputs for the metrics of one model. `kv_bytes` is the memory of all its pages; `restarts` counts
    restarts of its worker, `cache_failures` packed weights that could not be saved to disk,
    `cache_damages` those that were damaged there.
    """

    name: str
    meter: ModelMetrics
    status: EngineStatus
    kv_bytes: int
    state: str = "loaded"
    restarts: int = 0
    cache_failures: int = 0
    cache_damages: int = 0
