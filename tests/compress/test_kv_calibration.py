"""Keys and values calibrated: balanced keys undo what was moved between keys and queries, bits by losses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from headrace.bench.quality.kv_calibration import calibrate_kv
from headrace.bench.quality.next_token_model import NextTokenModel
from headrace.compress.kv_balance import factors_of
from headrace.compress.kv_bits import allocate, choices_for, mean_bits
from headrace.config.model_settings import KvCacheDtype
from headrace.errors import CorruptFile, UsageError
from headrace.executors.kv_layers import KV_BITS, KvLayers, LayerType
from headrace.loading.loader import load_model
from headrace.loading.model_record import ModelRecord, read_record, record_file, write_record
from headrace.loading.options import EngineOptions
from tiny import tiny_model

PLAIN = EngineOptions(quantization="keep", kv_cache_dtype="f32")
WINDOWS = np.random.default_rng(3).integers(2, 90, (3, 48)).astype(np.int32)


def planted(folder: Path) -> tuple[Path, Path, tuple[tuple[float, ...], ...]]:
    """A model, the same with keys that have outliers and queries that undo them, and the factors. All are
    powers of 2, so that nothing is rounded."""
    model = tiny_model(folder, "gemma2")
    config = json.loads((model / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    random, other = np.random.default_rng(5), folder / "planted"
    shutil.copytree(model, other)
    tensors, factors = load_file(model / "model.safetensors"), []
    for layer in range(config["num_hidden_layers"]):
        pairs = 2.0 ** random.integers(-6, 7, (kv_heads, dim // 2))
        of_keys = np.concatenate([pairs, pairs], axis=1).astype(np.float32)
        factors.append(tuple((1 / of_keys).reshape(-1).tolist()))
        stem = f"model.layers.{layer}.self_attn"
        of_queries = np.repeat(1 / of_keys, heads // kv_heads, axis=0)
        for name, by in (("k_proj", of_keys), ("q_proj", of_queries)):
            tensors[f"{stem}.{name}.weight"] = (tensors[f"{stem}.{name}.weight"] * by.reshape(-1, 1)).astype(
                tensors[f"{stem}.{name}.weight"].dtype
            )
    save_file(tensors, other / "model.safetensors")
    return model, other, tuple(factors)


def logs(model: Path, type: str, kv: KvLayers) -> NDArray[np.float64]:
    measured = NextTokenModel(str(model), replace(PLAIN, kv_cache_dtype=type), longest=48, kv=kv)
    return np.concatenate(list(measured.log_probs(WINDOWS[0], 0)))


@pytest.mark.parametrize("type", ["int8", "k8v4", "int4", "int3", "bf16"])
def test_balanced_keys_are_those_without_outliers(tmp_path: Path, type: str) -> None:
    model, other, factors = planted(tmp_path)
    plain = logs(model, type, KvLayers())
    np.testing.assert_array_equal(plain, logs(other, type, KvLayers(balance=factors)))
    if type != "bf16":
        assert (plain != logs(other, type, KvLayers())).any()


def test_calibration_finds_the_outliers(tmp_path: Path) -> None:
    model, other, factors = planted(tmp_path)
    own = calibrate_kv(model, PLAIN, WINDOWS, None).balance
    found = calibrate_kv(other, PLAIN, WINDOWS, None).balance
    for row, before, planted_row in zip(found, own, factors, strict=True):
        moved = np.array(row) / np.array(before) / np.array(planted_row)
        assert moved.std() / moved.mean() < 1e-3  # a factor for the whole row changes nothing
    assert calibrate_kv(other, PLAIN, WINDOWS, None).balance == found


def test_factors_of_sums() -> None:
    keys, queries = np.array([1.0, 16.0, 0.0, 4.0]), np.array([16.0, 1.0, 3.0, 4.0])
    factors = factors_of(keys, queries, 4)
    assert factors == (2.0, 0.5, 1.0, 1.0)
    with pytest.raises(UsageError, match="overflow"):
        factors_of(np.array([np.inf]), np.array([1.0]), 1)
    assert factors_of(np.zeros(2), np.zeros(2), 2) == (1.0, 1.0)


def test_bits_go_where_most_is_lost() -> None:
    kinds: tuple[LayerType, ...] = ("int4", "k8v4", "int8")
    losses: dict[tuple[int, LayerType], float] = {
        (layer, kind): size / (1 + 3 * step)
        for layer, size in enumerate((1.0, 9.0, 0.1))
        for step, kind in enumerate(kinds)
    }
    assert allocate(losses, 3, 4) == ("int4",) * 3
    assert allocate(losses, 3, 8) == ("int8",) * 3
    chosen = allocate(losses, 3, 5.4)
    assert chosen[1] != "int4" and chosen[2] == "int4" and mean_bits(chosen) <= 5.4
    for budget in (2.99, -1.0, float("nan")):
        with pytest.raises(UsageError, match="keys and values have 3, 4 or 8 bits"):
            allocate(losses, 3, budget)


def test_less_than_4_bits_take_3_where_least_is_lost() -> None:
    kinds = choices_for(3.5)
    losses: dict[tuple[int, LayerType], float] = {
        (layer, kind): size * (0.5 ** KV_BITS[kind][0] + 4 * 0.5 ** KV_BITS[kind][1])  # values lose more
        for layer, size in enumerate((1.0, 9.0, 0.1))
        for kind in kinds
    }
    assert allocate(losses, 3, 3) == ("int3",) * 3
    assert allocate(losses, 3, 3.5) == ("k3v4", "int4", "int3")
    assert mean_bits(allocate(losses, 3, 3.9)) <= 3.9


@pytest.mark.parametrize(("bits", "larger"), [(6.0, "int8"), (3.5, "int4")])
def test_mixed_runs_as_the_record_says(tmp_path: Path, bits: float, larger: KvCacheDtype) -> None:
    model = tiny_model(tmp_path, "gemma2")
    with pytest.raises(UsageError, match="mixed needs bits for each layer"):
        load_model(str(model), EngineOptions(kv_cache_dtype="mixed"))
    kv = calibrate_kv(model, PLAIN, WINDOWS, bits)
    assert np.mean(kv.bits) <= bits and len(kv.bits) == len(kv.balance) > 1
    write_record(model, ModelRecord(kv=kv))
    assert read_record(model).kv == kv
    options = EngineOptions(kv_cache_dtype="mixed", max_num_seqs=2, kv_cache_memory=1 << 20)
    mixed, whole = (
        load_model(str(model), options),
        load_model(str(model), replace(options, kv_cache_dtype=larger)),
    )
    assert mixed.plan.kv_bytes < whole.plan.kv_bytes
    mixed.close()
    whole.close()


@pytest.mark.parametrize(
    "kv",
    [
        {"bits": [[8, 8]]},
        {"bits": [[3, 8], [3, 3], [4, 4]]},
        {"bits": [[2, 2], [4, 4], [4, 4]]},
        {"balance": [[1.0], [1.0]]},
        {"balance": [[-1.0] * 32, [1.0] * 32]},
        {"balance": [[1e300] * 32, [1.0] * 32]},
    ],
)
def test_a_record_that_does_not_fit_is_refused(tmp_path: Path, kv: dict[str, object]) -> None:
    model = tiny_model(tmp_path)
    record_file(model).write_text(json.dumps({"kv": kv}))
    with pytest.raises(CorruptFile, match=r"headrace\.json: kv\.(bits|balance) must be"):
        load_model(str(model), EngineOptions(kv_cache_dtype="int4"))
    load_model(str(model), EngineOptions()).close()  # of no use there
