"""A small checkpoint to pack, and a count of what is packed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import SHAPES
from safetensors.numpy import save_file

from headrace import _native
from headrace.weights.checkpoint import Checkpoint, open_checkpoint


@pytest.fixture(scope="module")
def pool() -> _native.Pool:
    return _native.Pool(2)


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    found["b"] = found["b"].astype(np.float16)
    return found


@pytest.fixture
def checkpoint(tmp_path: Path, tensors: dict[str, np.ndarray]) -> Iterator[Checkpoint]:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({**tensors, "ids": np.ones((2, 2), np.int32)}, folder / "model.safetensors")
    with open_checkpoint(folder) as starts_in_reasoning:
        yield starts_in_reasoning


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "inner"


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever something is packed."""
    calls: list[int] = []
    pack = _native.pack

    def counted(*args: Any) -> None:
        calls.append(1)
        pack(*args)

    monkeypatch.setattr(_native, "pack", counted)
    return calls
