"""`slo` of a body: the request's own targets."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from headrace.engine.request import Targets


class SloBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Milliseconds to the first token, and per token after it; what is absent is the model's. They decide
    what becomes of a request that would be late (`slo_policy`)."""

    ttft_ms: Annotated[float, Meta(ge=1, le=3_600_000)] | None = None
    tpot_ms: Annotated[float, Meta(ge=1, le=60_000)] | None = None


def targets_of(body: SloBody | None) -> Targets | None:
    """The same in seconds."""
    if body is None or (body.ttft_ms is None and body.tpot_ms is None):
        return None
    return Targets(_seconds(body.ttft_ms), _seconds(body.tpot_ms))


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
