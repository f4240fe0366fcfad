"""LongRoPE: the list of divisors is chosen by the context that the model is loaded with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from golden import FOLDER
from headrace.errors import CorruptFile
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare
from headrace.models.registry import find_model
from tiny import tiny_model

CONFIG = json.loads((FOLDER / "phi3_longrope" / "config.json").read_text())
PLAIN = 1 / 1e4 ** (np.arange(4) / 4)
SCALE = math.sqrt(1 + math.log(512 / 16) / math.log(16))  # for either list


@pytest.mark.parametrize(
    ("context", "factors"), [(None, "long_factor"), (17, "long_factor"), (16, "short_factor")]
)
def test_the_context_selects_the_list(context: int | None, factors: str) -> None:
    rope = find_model(CONFIG, context=context).config.ropes[0]
    assert rope is not None
    np.testing.assert_allclose(rope.inv_freq, PLAIN / CONFIG["rope_scaling"][factors], rtol=1e-6)
    assert rope.scale == pytest.approx(SCALE)


def test_the_context_option_of_loading_is_used(tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path, "phi3_longrope"))
    tables: list[np.ndarray] = []
    for context in (None, 16):
        prepared = prepare(folder, EngineOptions(max_model_len=context))
        prepared.checkpoint.close()
        tables.append(next(iter(prepared.program.constants.values())))
    assert (tables[0] < tables[1]).all()


def test_a_list_of_wrong_length_is_rejected() -> None:
    scaling = CONFIG["rope_scaling"] | {"long_factor": [1.0]}
    with pytest.raises(CorruptFile, match=r"long_factor.*a list of 4 numbers greater than 0"):
        find_model(CONFIG | {"rope_scaling": scaling})
