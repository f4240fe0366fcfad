"""How urgent a request is: priority, service tier and targets, in Python's keywords."""

from __future__ import annotations

import pytest

from headrace.engine.request import Targets
from headrace.errors import InvalidRequest
from headrace.inference.keywords import chat_request, completion_request


def test_tiers_and_targets_are_keywords() -> None:
    found = completion_request("a", {"service_tier": "priority", "slo": {"ttft_ms": 200}})
    assert (found.priority, found.slo) == (-1, Targets(0.2, None))
    messages = [{"role": "user", "content": "a"}]
    asked = chat_request(messages, {"service_tier": "flex", "slo": {"tpot_ms": 50, "ttft_ms": None}})
    assert (asked.priority, asked.slo) == (100, Targets(None, 0.05))
    plain = completion_request("a", {"priority": 3, "service_tier": "auto", "slo": {}})
    assert (plain.priority, plain.slo) == (3, None)


@pytest.mark.parametrize(
    ("given", "param", "says"),
    [
        ({"service_tier": "gold"}, "service_tier", "must be one of auto, default, flex, priority"),
        ({"service_tier": "flex", "priority": 2}, "service_tier", "send one"),
        ({"slo": 5}, "slo", "not a mapping"),
        ({"slo": {"ttft": 5}}, "slo", "it may have ttft_ms and tpot_ms"),
        ({"slo": {"ttft_ms": 0}}, "slo", "it must be 1 to 3,600,000 milliseconds"),
        ({"slo": {"tpot_ms": float("nan")}}, "slo", "it must be 1 to 60,000 milliseconds"),
        ({"slo": {"tpot_ms": True}}, "slo", "tpot_ms is True"),
    ],
)
def test_what_means_nothing_is_refused(given: dict[str, object], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        completion_request("a", given)
    assert caught.value.param == param
