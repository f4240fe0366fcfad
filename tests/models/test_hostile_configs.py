"""Configs with one wrong value give a program or a typed error, in every architecture."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from golden import FOLDER, NAMES
from headrace.errors import CorruptFile, HeadraceError
from headrace.models.registry import find_model
from headrace.models.rope import read_rope, read_score_scale
from headrace.program.record import record
from headrace.program.verify import verify

WRONG: list[Any] = [-1, 0, 1, 2**31 - 1, 2**63, 1e308, "x", [1], {"x": 1}]


def places(settings: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in settings.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from places(value, (*before, key))


def changed(config: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    config = copy.deepcopy(config)
    inner = config
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return config


def test_one_wrong_value() -> None:
    """Every field once per architecture; a large config does not make a program larger, so this is fast."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    refused = 0
    for name in NAMES:
        config = json.loads((FOLDER / name / "config.json").read_text())
        for place in places(config):
            if (config["model_type"], place) in seen:
                continue
            seen.add((config["model_type"], place))
            for value in WRONG:
                try:
                    verify(record(find_model(changed(config, place, value)).define))
                except HeadraceError as error:
                    assert error.message
                    refused += 1
    assert refused > len(seen) * 2


ROPES: dict[str, dict[str, Any]] = {
    "base below 1": {"rope_theta": -1.0},
    "linear by 0": {"rope_parameters": {"rope_type": "linear", "factor": 0}},
    "no middle": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8,
            "low_freq_factor": 0,
            "high_freq_factor": 0,
            "original_max_position_embeddings": 8192,
        }
    },
    "yarn with base 1": {"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 4}},
    "yarn without rotations": {"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": -1}},
    "yarn by 0": {"rope_scaling": {"type": "yarn", "factor": 0}},
}


@pytest.mark.parametrize("name", ROPES)
def test_rotations_without_frequencies(name: str) -> None:
    with pytest.raises(CorruptFile, match=r"config\.json has .*: correct"):
        read_rope({"max_position_embeddings": 4096} | ROPES[name], 64)


def test_scores_without_a_scale() -> None:
    table = {"rope_type": "yarn", "factor": 40, "mscale_all_dim": 1e308}
    with pytest.raises(CorruptFile, match="no finite frequencies or scale"):
        read_score_scale({"rope_scaling": table})
    assert np.isclose(read_score_scale({"rope_scaling": table | {"mscale_all_dim": 1}}), 1.3689**2, rtol=1e-4)
