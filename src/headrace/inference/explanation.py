"""EXPLAIN of a call: what its handlers noted, and what the engines did."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.inference.call_context import CallContext
    from headrace.telemetry.explain import ExplainNode


def explanation(call: CallContext) -> ExplainNode:
    """The tree of a call that ends now."""
    from headrace.telemetry.explain import explain

    return explain(call.stages, call.traces, time.monotonic() - call.arrival_s)
