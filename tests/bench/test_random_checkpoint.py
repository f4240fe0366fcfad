"""Random checkpoints for any config have the same tensors as real checkpoints."""

from __future__ import annotations

import json

import numpy as np
import pytest

from golden import FOLDER, NAMES
from headrace.bench.random_checkpoint import RandomCheckpoint, read_config_file
from headrace.errors import HeadraceError, UsageError
from headrace.weights.checkpoint import open_checkpoint


@pytest.mark.parametrize("name", NAMES)
def test_tensors_match_the_real_checkpoint(name: str) -> None:
    with open_checkpoint(FOLDER / name) as real:
        made_up = RandomCheckpoint(read_config_file(FOLDER / name / "config.json"))
        shapes = {tensor: info.shape for tensor, info in made_up.tensors.items()}
        assert shapes == {tensor: real.info(tensor).shape for tensor in shapes}


def test_row_reads_equal_the_whole_tensor() -> None:
    config = read_config_file(FOLDER / "llama3" / "config.json")
    one, other = RandomCheckpoint(config), RandomCheckpoint(config)
    name = next(name for name, info in one.tensors.items() if len(info.shape) == 2)
    rows, width = one.info(name).shape
    whole, part = np.empty((rows, width), np.uint16), np.empty((rows - 3, width), np.uint16)
    one.read_rows(name, 0, rows, memoryview(whole.reshape(-1)).cast("B"))
    other.read_rows(name, 3, rows - 3, memoryview(part.reshape(-1)).cast("B"))
    assert np.array_equal(whole[3:], part)
    assert one.fingerprint == other.fingerprint
    assert 0.015 < one.float32(name).std() < 0.025


def test_an_invalid_field_is_named(tmp_path) -> None:
    config = read_config_file(FOLDER / "llama3" / "config.json")
    with pytest.raises(HeadraceError, match="num_hidden_layers"):
        RandomCheckpoint({**config, "num_hidden_layers": "many"})
    (tmp_path / "config.json").write_text("[1, 2")
    with pytest.raises(UsageError, match=r"config\.json"):
        read_config_file(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps([1, 2]))
    with pytest.raises(UsageError, match="no JSON object"):
        read_config_file(tmp_path / "config.json")
