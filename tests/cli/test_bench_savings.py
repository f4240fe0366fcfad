"""`headrace bench savings` as a command: measured, simulated, run by engines, written to files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from invocation import Outcome

from headrace.cli.bench.savings import certified

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 8192,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": True,
}


def test_the_engine_with_an_api_is_refused(inside: Callable[..., Outcome]) -> None:
    outcome = inside("bench", "savings", "--engine", "--api", "openai/gpt-4o-mini")
    assert outcome.code == 2 and "leave out --api" in outcome.stderr


@pytest.mark.nightly
def test_parts_sum_and_what_is_planted_is_found(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    config, table, picture = tmp_path / "config.json", tmp_path / "bill.csv", tmp_path / "bill.png"
    config.write_text(json.dumps(TINY))
    asked = ["--requests", "20", "--per-second", "50", "--history", "60", "--repeats", "1", "--plant", "0.05"]
    files = ["--large-config", str(config), "--csv", str(table), "--png", str(picture)]
    outcome = inside("bench", "savings", "--engine", "--json", *asked, *files)
    assert outcome.code == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    bill = found["bill"]
    values = {line["name"]: line for line in bill["lines"]}
    assert sum(line["saves_nano"] for line in bill["lines"]) == bill["base_nano"] - bill["total_nano"]
    assert values["no-op"]["saves_nano"] == 0
    assert values["planted"]["saves_nano"] / bill["base_nano"] == pytest.approx(-0.05, abs=0.01)
    lossy = {name for name, line in values.items() if line["quality"]}
    assert lossy == {"quantization", "KV quantization", "routing", "student"}
    assert [run["added"] for run in found["engine"]][:2] == ["none", "batching"]
    assert all(run["measured_nano"] > 0 for run in found["engine"])
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["saves_nano_usd"]) for row in rows) == bill["base_nano"] - bill["total_nano"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_every_label_certifies_and_others_choose_the_thresholds() -> None:
    """A model that is right in its better half only. With a fifth of 300 labels spent on thresholds nothing
    was certified."""
    random = np.random.default_rng(4)
    scores, others = random.random(300), random.random(90)
    wrong = (scores < 0.5) & (random.random(300) < 0.8)
    found = certified(scores.tolist(), wrong.tolist(), others.tolist(), 0.05)
    assert found is not None and found.labeled == 300
    assert 0.45 < found.threshold < 0.65
    assert found.threshold in others and found.upper <= 0.05
    assert certified(scores.tolist(), [True] * 300, others.tolist(), 0.05) is None
