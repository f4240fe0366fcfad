"""Operating points: settings that belong together, under one name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Profile = Literal["voice", "chat", "batch"]

PROFILES: Mapping[str, Mapping[str, object]] = {
    "voice": {"slo": {"ttft_ms": 300.0, "tpot_ms": 40.0}, "max_turn_ms": 15.0},
    "chat": {"slo": {"ttft_ms": 500.0, "tpot_ms": 50.0}, "max_turn_ms": 40.0},
    "batch": {"max_turn_ms": 200.0, "max_batch_tokens": 1024, "max_num_seqs": 64},
}
"""What each sets, where nothing else does: short steps and early first tokens, or large steps."""
