"""A front and its replicas are killed under every kind of request: all goes on, byte for byte, once."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

CLUSTER = json.dumps({"replicas": 2, "hang_s": 1.0})


@pytest.mark.nightly
def test_a_front_and_replicas_are_killed(tmp_path: Path) -> None:
    """`tests/journal/kill_rounds.py --cluster` does it for as long as one likes."""
    for name in ("mcp", "jsonschema_rs", "aiohttp"):
        pytest.importorskip(name, reason="needs headrace[tools] and headrace[adapt]")
    round_of: Any = importlib.import_module("journal.kill_rounds").Round

    one = round_of(tmp_path, random.Random(34), {}, clients=5, cluster=CLUSTER)
    one.play(8, faults=("replica", "server", "replica", "worker", "both", "replica"))
    assert not one.problems, one.problems
