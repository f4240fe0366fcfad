"""EXPLAIN of a call: what its handlers noted, and what the engines did or would do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headrace.inference.call_context import CallContext
from headrace.inference.local_handler import LocalHandler
from headrace.inference.requests import InferenceRequest
from headrace.telemetry.explain import explain, predict
from headrace.telemetry.explain_node import ExplainNode

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel


def explanation(call: CallContext) -> ExplainNode:
    """The tree of a call that ends now."""
    return explain(call.stages, call.traces, time.monotonic() - call.arrival_s)


async def prediction(
    handler: LocalHandler, request: InferenceRequest, call: CallContext, usd_per_hour: float = 0.0
) -> ExplainNode:
    """The tree of a request that is not computed. It costs its time, at the machine's price."""
    model = await handler.predict(request, call)
    detail = {"model": model.name, **_memory(model, call)}
    found = predict(call.stages, call.traces, time.monotonic() - call.arrival_s, detail)
    if usd_per_hour and found.predicted_s:
        detail["usd"] = usd_per_hour * found.predicted_s / 3600
        found = predict(call.stages, call.traces, time.monotonic() - call.arrival_s, detail)
    return found


def _memory(model: LoadedModel, call: CallContext) -> dict[str, Any]:
    """Tokens, and pages of keys and values that are new."""
    usages, plan = [trace.usage for trace in call.traces], model.plan
    prompt = sum(usage.prompt_tokens for usage in usages)
    output = sum(usage.completion_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    found: dict[str, Any] = {"prompt_tokens": prompt, "cached_tokens": cached}
    if not model.engine.limits.embedding_size:
        pages = -(-(prompt - cached + output) // plan.page_tokens)
        page_bytes = plan.kv_bytes // plan.page_count if plan.page_count else 0
        found |= {"output_tokens": output, "kv_pages": pages, "kv_bytes": pages * page_bytes}
    return found
