"""What `headrace cluster` says of itself and of replicas."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from invocation import Outcome

from headrace.cli.cluster import COMMANDS, status

MODEL = {
    "id": "tiny",
    "policy": "kv",
    "wanted": 2,
    "starting": 0,
    "nodes": ["local"],
    "in_flight": 1,
    "waiting": 0,
    "hit_rate": 0.5,
    "attained": None,
    "problem": None,
    "replicas": [],
}
REPLICA = {
    "replica": 0,
    "node": "local",
    "pid": 7,
    "state": "running",
    "role": "any",
    "requests": 1,
    "running": 1,
    "waiting": 0,
    "kv_used": 0.25,
    "steps": 1234,
    "cached_tokens": 1,
    "prompt_tokens": 2,
    "costs_from": "measured",
}


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_examples_are_in_lines_of_their_own(words: list[str], inside: Callable[..., Outcome]) -> None:
    shown = inside("cluster", *words, "--help").stdout
    examples = re.search(r"\n  Examples?:\n((?:    \S.*\n)+)", shown)
    assert examples, shown
    assert all(line.count("headrace cluster") == 1 for line in examples[1].splitlines())


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"replicas": [REPLICA] * 2}, "tiny: 2 replicas, on 1 node, routed by kv, 1 request, 0 wait"),
        ({"replicas": [REPLICA], "starting": 1}, "tiny: 1 replica (2 wanted), 1 starting, on 1 node"),
        ({"replicas": [REPLICA], "wanted": 0}, "tiny: 1 replica (0 wanted), on 1 node"),
        (
            {"wanted": 0, "nodes": [], "in_flight": 0},
            "tiny: 0 replicas, on 0 nodes, routed by kv, 0 requests",
        ),
    ],
)
def test_the_number_of_replicas_is_said(
    changes: dict[str, Any], begins: str, inside: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "call_server", lambda *_: {"data": [{**MODEL, **changes}]})
    result = inside("cluster", "status")
    assert result.code == 0 and result.stdout.startswith(begins), result
