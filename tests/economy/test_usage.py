"""What usage objects say: disjoint classes, costs in them, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from golden_bills import GOLDEN, chat, claude, gemini, parts, responses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.economy.quantities import TOKEN_CLASSES
from headrace.economy.usage import UnknownUsage, read_usage


def read(usage: Any) -> Any:
    return read_usage(json.dumps(usage).encode())


@pytest.mark.parametrize("one", GOLDEN, ids=lambda one: f"{one.provider}-{one.model}")
def test_every_token_is_in_one_class(one: Any) -> None:
    found = read(one.usage).quantities
    total = one.usage.get("total_tokens", one.usage.get("totalTokenCount"))
    if total is None:  # Anthropic states none: its parts are disjoint but for the thoughts
        parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
        total = sum(one.usage.get(name) or 0 for name in parts)
    assert sum(getattr(found, name) for name in TOKEN_CLASSES) == total


def test_ollama_counts_and_its_nanoseconds() -> None:
    found = read(
        {"prompt_eval_count": 26, "eval_count": 298, "total_duration": 5_191_566_416, "eval_duration": 4}
    ).quantities
    assert (found.input, found.output) == (26, 298)


def test_cost_that_openrouter_states() -> None:
    assert read(chat(10, 2, cost=0.00014)).reported_nano_usd == 140_000
    assert read(chat(10, 2, cost=0)).reported_nano_usd == 0
    byok = chat(10, 2, cost=0.000005, is_byok=True, cost_details={"upstream_inference_cost": 0.0001})
    assert read(byok).reported_nano_usd == 105_000
    not_byok = byok | {"is_byok": False}
    assert read(not_byok).reported_nano_usd == 5_000
    assert read(chat(10, 2, cost=-1)).reported_nano_usd is None
    assert read(chat(10, 2, cost="0.1")).reported_nano_usd is None
    assert read(chat(10, 2)).reported_nano_usd is None


REFUSED: list[tuple[Any, str]] = [
    ([], "no JSON object"),
    ({}, "none of the fields"),
    ({"type": "duration", "seconds": 12}, "none of the fields"),
    (chat(-1, 2), "prompt_tokens is -1"),
    (chat(2**63, 0), "no count"),
    (chat(1, 2) | {"completion_tokens": True}, "completion_tokens is True"),
    (chat(1, 2) | {"completion_tokens": "2"}, "no count"),
    (chat(1, 2) | {"completion_tokens": 1.5}, "no count"),
    (chat(1, 2) | {"total_tokens": 4}, "total_tokens is 4, not 1 + 2"),
    (chat(1, 2, prompt_tokens_details={"cached_tokens": 2}), "prompt_tokens is 1, its parts are 2"),
    (chat(1, 2, prompt_tokens_details=[1]), "prompt_tokens_details is no object"),
    (chat(1, 2, prompt_tokens_details={"hologram_tokens": 1}), "prompt_tokens_details.hologram_tokens"),
    (chat(1, 2, citation_tokens=5), "citation_tokens"),
    (chat(1, 2, num_sources_used=3), "num_sources_used"),
    (chat(1, 2, prompt_audio_seconds=30), "prompt_audio_seconds"),
    (chat(9, 2, prompt_cache_hit_tokens=4, prompt_cache_miss_tokens=4), "are not the 9"),
    (chat(9, 2, prompt_cache_hit_tokens=4, prompt_tokens_details={"cached_tokens": 5}), "different counts"),
    (responses(1, 2) | {"total_tokens": 9}, "total_tokens is 9"),
    (responses(1, 2, reasoning=3), "output_tokens is 2"),
    (claude(1, 2, cache_creation_input_tokens=5, cache_creation={"ephemeral_5m_input_tokens": 4}), "4 + 0"),
    (claude(1, 2, cache_read_input_tokens=0, inference_geo="us"), "inference_geo"),
    (claude(1, 2, iterations=[{"input_tokens": 4}]), "iterations"),
    (claude(1, 2, server_tool_use={"code_execution_requests": 1}), "server_tool_use.code_execution_requests"),
    (gemini(1, 2) | {"totalTokenCount": 4}, "totalTokenCount is 4"),
    (gemini(1, 2, trafficType="PROVISIONED_THROUGHPUT"), "PROVISIONED_THROUGHPUT"),
    (gemini(1, 2, promptTokensDetails=parts(text=2)), "promptTokensDetails has 2"),
    (gemini(1, 2, promptTokensDetails=parts(smell=1)), "SMELL"),
    (gemini(5, 2, promptTokensDetails="x"), "no list of objects"),
    (gemini(5, 2, candidatesTokensDetails=parts(video=2)), "contradict"),
]


@pytest.mark.parametrize(("usage", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_accounted_for_is_refused_by_name(usage: Any, said: str) -> None:
    with pytest.raises(UnknownUsage) as caught:
        read(usage)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff", b'{"prompt_tokens": NaN}', b"[" * 100_000, b'{"a": 1' + b" " * 300_000 + b"}"]
)
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(UnknownUsage):
        read_usage(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10) | st.floats(0, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KNOWN = [
    "prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details",
    "completion_tokens_details",
    "input_tokens", "output_tokens", "input_tokens_details", "cache_creation", "cache_read_input_tokens",
    "cache_creation_input_tokens", "promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount",
    "promptTokensDetails", "totalTokenCount", "cachedContentTokenCount", "prompt_eval_count",
    "cost", "is_byok",
    "cost_details", "server_tool_use", "service_tier", "trafficType", "prompt_cache_hit_tokens",
]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.dictionaries(st.sampled_from(KNOWN), JSON))
def test_any_object_is_read_or_refused(usage: dict[str, Any]) -> None:
    try:
        found = read_usage(json.dumps(usage).encode())
    except UnknownUsage:
        return
    assert all(getattr(found.quantities, name) >= 0 for name in TOKEN_CLASSES)
