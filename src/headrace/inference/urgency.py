"""How urgent a request is: its priority or service tier, and its own targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast, get_args

from headrace.engine.request import Targets
from headrace.engine.turns import BATCH_PRIORITY
from headrace.errors import InvalidRequest

ServiceTier = Literal["auto", "default", "flex", "priority"]
TIER_PRIORITY = {"priority": -1, "flex": BATCH_PRIORITY}
"""Of OpenAI's tiers that are another class than the default one."""
LONGEST_MS = {"ttft_ms": 3_600_000.0, "tpot_ms": 60_000.0}
"""The targets that a request may name, and the most of each, in milliseconds."""


def urgency(priority: int | None, service_tier: str | None) -> int:
    """The priority of a request that may name a service tier instead. InvalidRequest where both say
    something, and for an unknown tier."""
    if service_tier is not None and service_tier not in get_args(ServiceTier):
        raise InvalidRequest(
            f"service_tier is {service_tier!r:.80}, it must be one of {', '.join(get_args(ServiceTier))}",
            param="service_tier",
        )
    of_tier = TIER_PRIORITY.get(service_tier or "")
    if priority is not None and of_tier is not None:
        raise InvalidRequest(
            f"priority {priority} and service_tier '{service_tier}' both say how urgent the request is: "
            "send one",
            param="service_tier",
        )
    return priority or of_tier or 0


def read_targets(given: object) -> Targets | None:
    """Targets of a mapping with `ttft_ms` and `tpot_ms`; None where it has none. InvalidRequest."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidRequest("slo is not a mapping, such as {'ttft_ms': 300, 'tpot_ms': 50}", param="slo")
    found = cast("Mapping[str, object]", given)
    for name, value in found.items():
        if name not in LONGEST_MS:
            raise InvalidRequest(f"slo has {name!r:.80}, it may have {' and '.join(LONGEST_MS)}", param="slo")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 1 <= cast("float", value) <= LONGEST_MS[name]):
            raise InvalidRequest(
                f"slo: {name} is {value!r:.80}, it must be 1 to {LONGEST_MS[name]:,.0f} milliseconds",
                param="slo",
            )
    ttft_s, tpot_s = (_seconds(found.get(name)) for name in LONGEST_MS)
    return None if ttft_s is None and tpot_s is None else Targets(ttft_s, tpot_s)


def _seconds(milliseconds: object) -> float | None:
    return None if milliseconds is None else cast("float", milliseconds) / 1e3
