"""Importance matrices as llama.cpp's, rounding weighed by them, and bits by measured losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_file import Stored, gguf_bytes
from headrace.compress.allocation import MatrixCandidate, choose, losses_of
from headrace.compress.gptq import weighted
from headrace.compress.grids import Q4Zero
from headrace.compress.imatrix import read_imatrix, write_imatrix
from headrace.errors import CorruptFile, HeadraceError, UsageError

RNG = np.random.default_rng(2)


def test_what_is_written_is_read_here_and_by_gguf(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the witness is not here: pip install gguf")
    file, sums = tmp_path / "im.gguf", {"blk.0.attn_q.weight": RNG.random(64) * 100}
    write_imatrix(file, sums, 32, "a text", 16)
    found = read_imatrix(file)
    assert found.keys() == sums.keys()
    np.testing.assert_allclose(found["blk.0.attn_q.weight"], sums["blk.0.attn_q.weight"] / 32, rtol=1e-6)
    reader = gguf.GGUFReader(file)
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.chunk_count"].contents() == 2
    assert {tensor.name for tensor in reader.tensors} == {
        "blk.0.attn_q.weight.in_sum2",
        "blk.0.attn_q.weight.counts",
    }


def vector(*values: float) -> Stored:
    return Stored("F32", (len(values),), np.array(values, np.float32).tobytes())


@pytest.mark.parametrize(
    "tensors",
    [
        {"a.in_sum2": vector(1, 2)},
        {"a.in_sum2": vector(1, -2), "a.counts": vector(1)},
        {"a.in_sum2": vector(1, np.nan), "a.counts": vector(1)},
        {"a.in_sum2": vector(1, 2), "a.counts": vector(np.inf)},
        {"a.weight": vector(1, 2)},
    ],
)
def test_damaged_ones_are_refused(tmp_path: Path, tensors: dict[str, Stored]) -> None:
    file = tmp_path / "im.gguf"
    file.write_bytes(gguf_bytes({"general.type": "imatrix"}, tensors))
    with pytest.raises(CorruptFile):
        read_imatrix(file)


def test_what_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "im.dat"
    file.write_bytes(b"\x01\x00\x00\x00")
    for path in (file, tmp_path / "absent", tmp_path):
        with pytest.raises(HeadraceError):
            read_imatrix(path)


def test_errors_are_weighed() -> None:
    weight = RNG.standard_normal((16, 64)).astype(np.float32)
    importance = (10.0 ** RNG.uniform(-3, 3, 64)).astype(np.float32)

    def lost(values: np.ndarray) -> float:
        return float((np.square(weight - values) * importance).sum())

    flat = weighted(weight, np.ones(64, np.float32), Q4Zero(), name="w")
    best = weighted(weight, importance, Q4Zero(), name="w")
    assert lost(best.values) < 0.8 * lost(flat.values)
    with pytest.raises(CorruptFile, match="another model"):
        weighted(weight, importance[:32], Q4Zero(), name="w")
    with pytest.raises(CorruptFile, match="tensor w"):
        weighted(np.where(weight > 1, np.float32(np.nan), weight), importance, Q4Zero(), name="w")
    zeros = weighted(weight, np.zeros(64, np.float32), Q4Zero(), name="w")
    np.testing.assert_array_equal(zeros.data, flat.data)  # inputs that were always 0: plain rounding


def test_bits_stay_within_the_budget() -> None:
    weight = RNG.standard_normal((32, 64)).astype(np.float32)
    one = losses_of(weight, np.eye(64), "Q4_0")
    assert list(one.losses) == ["Q4_0", "Q8_0"] and one.losses["Q8_0"] < 0.01 * one.losses["Q4_0"]
    many = {f"w{i}": MatrixCandidate(1000, {"Q4_0": 0.01 * (i + 1), "Q8_0": 0.0001}) for i in range(4)}
    chosen = choose(many, 6.5, 4.5, 4000)
    assert chosen == {"w3": "Q8_0", "w2": "Q8_0"}
    assert choose(many, 4.5, 4.5, 4000) == {}
    for budget in (4.4, float("nan"), float("inf")):
        with pytest.raises(UsageError, match=r"use --bits 4\.7 or more"):
            choose(many, budget, 4.5, 4000)
