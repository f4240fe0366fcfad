"""EXPLAIN of a call: what its handlers noted, and what the engines did."""

from __future__ import annotations

import time

from headrace.inference.call_context import CallContext
from headrace.telemetry.explain import ExplainNode, explain


def explanation(call: CallContext) -> ExplainNode:
    """The tree of a call that ends now."""
    return explain(call.stages, call.traces, time.monotonic() - call.arrival_s)
