"""Vectors of one byte and one bit: the layouts of sentence-transformers, and what is left of cosines."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.engine.unit_rows import unit_rows
from headrace.tasks.vector_types import STEPS, VectorType, as_type, int8_range

KINDS: tuple[VectorType, ...] = ("int8", "uint8", "binary", "ubinary")


def vectors(count: int, size: int) -> np.ndarray:
    return unit_rows(np.random.default_rng(size).standard_normal((count, size), np.float32))


def by_formula(found: np.ndarray, kind: VectorType) -> np.ndarray:
    """The formulas of sentence-transformers' documentation, with the fixed range in the place of one that is
    calibrated."""
    if kind == "binary":
        return (np.packbits(found > 0).reshape(len(found), -1) - 128).astype(np.int8)
    if kind == "ubinary":
        return np.packbits(found > 0).reshape(len(found), -1)
    start = -int8_range(found.shape[1])
    steps = (found - start) / (-2 * start / 255)
    return steps.astype(np.uint8) if kind == "uint8" else (steps - 128).astype(np.int8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [64, 384, 1024])
def test_layouts_are_those_of_the_formulas(kind: VectorType, size: int) -> None:
    found = vectors(20, size)
    ours, theirs = as_type(found, kind), by_formula(found, kind)
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    apart = np.abs(ours.astype(int) - theirs.astype(int))
    # Theirs cuts what is behind the point, this rounds.
    assert apart.max() <= (0 if "binary" in kind else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_layouts_are_those_of_the_package(kind: VectorType) -> None:
    quantization = pytest.importorskip("sentence_transformers.quantization")
    found, most = vectors(20, 384), int8_range(384)
    ranges = np.array([[-most] * 384, [most] * 384], np.float32)
    theirs = quantization.quantize_embeddings(found, precision=kind, ranges=ranges)
    ours = as_type(found, kind)
    assert ours.dtype == theirs.dtype
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= (0 if "binary" in kind else 1)


@pytest.mark.parametrize("size", [8, 64, 384, 1024, 4096])
def test_cosines_stay(size: int) -> None:
    found, most = vectors(40, size), int8_range(size)
    codes = as_type(found, "int8")
    assert np.array_equal(codes.astype(int) + 128, as_type(found, "uint8"))
    back = unit_rows(((codes.astype(np.float64) + 128) * 2 * most / STEPS - most).astype(np.float32))
    assert (found * back).sum(1).min() > 0.999
    assert np.abs(found @ found.T - back @ back.T).max() < 0.02


def test_numbers_beyond_the_range_become_its_end() -> None:
    one = np.zeros((1, 1024), np.float32)
    one[0, 3], one[0, 5] = 0.8, -0.6
    found = as_type(one, "int8")
    assert found[0, 3] == 127 and found[0, 5] == -128


def test_bits_beyond_the_size_are_zero() -> None:
    found = as_type(np.ones((2, 10), np.float32), "ubinary")
    assert found.tolist() == [[255, 192]] * 2
    assert as_type(np.ones((2, 10), np.float32), "binary").tolist() == [[127, 64]] * 2
