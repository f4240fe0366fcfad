"""Mamba 2 configs, and a hybrid model with recurrent states and attention on every executor."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from golden import CAPACITY, FOLDER, Chunk, load_golden, make_step, relative_error, scattered_pages
from headrace import _native
from headrace.errors import CorruptFile, UnsupportedModel
from headrace.executors.native import NativeExecutor
from headrace.executors.reference import ReferenceExecutor
from headrace.kv.pages import PAGE_TOKENS
from headrace.models import mamba2
from headrace.ops.add import add
from headrace.ops.attend import attend
from headrace.ops.builder import Builder
from headrace.ops.kv_write import kv_write
from headrace.ops.linear import linear
from headrace.ops.value import Array, Ints, Value
from headrace.program.program import Program
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.config_json import Config
from headrace.weights.formats import pack
from headrace.weights.packing.packed_weights import PackedWeight
from headrace.weights.strict_json import read_object

TEXT = (FOLDER / "mamba2" / "config.json").read_text()


def config(tmp_path: Path, text: str = TEXT) -> Config:
    (tmp_path / "config.json").write_text(text)
    return read_object(tmp_path / "config.json", 1 << 20)


def test_infinity_is_read_in_both_spellings(tmp_path: Path) -> None:
    assert "Infinity" in TEXT
    spelled = TEXT.replace("Infinity", '{"__float__": "Infinity"}')
    for text in (TEXT, spelled):
        assert mamba2.read_config(config(tmp_path, text)).largest_dt == math.inf
    assert config(tmp_path, '{"a": "Infinity \\" Infinity"}') == {"a": 'Infinity " Infinity'}
    for wrong in ('{"a": -Infinity}', '{"a": NaN}', "{Infinity: 1}", '{"a": Infinity1}'):
        with pytest.raises(CorruptFile):
            config(tmp_path, wrong)


def test_invalid_configs_are_rejected(tmp_path: Path) -> None:
    good = config(tmp_path)
    assert mamba2.read_config({**good, "max_position_embeddings": 77}).context == 77
    for change in ({"head_dim": 15}, {"n_groups": 3}):
        with pytest.raises(UnsupportedModel, match="heads times their size must be the inner size"):
            mamba2.read_config({**good, **change})
    for limit in ([0.0], [2.0, 1.0], [-1.0, 1.0], [math.nan, 1.0], "0", [0, "1"]):
        with pytest.raises(UnsupportedModel, match="time_step_limit is"):
            mamba2.read_config({**good, "time_step_limit": limit})


def hybrid(m: Builder) -> Value:
    """The golden's first two layers with attention over the same rows between them."""
    c = mamba2.read_config(json.loads(TEXT))

    def mixer(m: Builder, c: mamba2.Mamba2Config, layer: int, x: Value) -> Value:
        y = MIXER(m, c, layer, x)
        if layer:
            return y
        q, k, v = (linear(x, m.weight(name, 32, 32)) for name in "qkv")
        cache = m.cache(0, 32)
        kv_write(k, v, m.slots, cache)
        attrs = {
            "head_dim": 16,
            "value_dim": 16,
            "page_tokens": PAGE_TOKENS,
            "scale": 0.25,
            "window": 0,
            "softcap": 0.0,
        }
        return add(y, attend(q, cache, m.query_starts, m.lengths, m.block_tables, **attrs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mamba2, "mixer", mixer)
        return mamba2.define(m, c)


MIXER = mamba2.mixer


def native(program: Program, weights: dict[str, Array]) -> NativeExecutor:
    matrices: dict[str, PackedWeight] = {}
    for name, weight in weights.items():
        if weight.ndim == 2:
            packed = pack("f32", weight)
            data = _native.allocate(packed.nbytes)
            data[:] = packed
            matrices[name] = PackedWeight("f32", *weight.shape, data)
    vectors = {name: weight for name, weight in weights.items() if weight.ndim != 2}
    pool = _native.Pool(2)
    return NativeExecutor(program, matrices, vectors, CAPACITY, pool=pool, kv_type="f32", poison=True)


def test_a_hybrid_gives_the_same_bits_in_any_chunks_and_slots() -> None:
    golden = load_golden("mamba2")
    program = verify(record(hybrid))
    random = np.random.default_rng(0)
    weights = golden.weights | {n: random.normal(size=(32, 32)).astype(np.float32) / 4 for n in "qkv"}
    executor = native(program, weights)
    prompts = [golden.prompt, golden.prompt[::-1].copy()]

    def run(*parts: tuple[Ints, int, int]) -> Array:
        chunks = [Chunk(tokens, cached, scattered_pages(b)) for tokens, cached, b in parts]
        return executor.run(make_step(*chunks)).copy()

    reference = ReferenceExecutor(program, weights, CAPACITY)
    whole = [run((prompt, 0, 0)) for prompt in prompts]  # both in one slot: the second starts from zeros
    for prompt, logits in zip(prompts, whole, strict=True):
        expected = reference.run(make_step(Chunk(prompt, 0, scattered_pages(1))))
        assert relative_error(logits, expected) <= 1e-5
    for start in range(0, 24, 7):
        end = min(start + 7, 24)
        got = run((prompts[1][start:end], start, 2), (prompts[0][start:end], start, 1))
        assert np.array_equal(got, np.concatenate([whole[1][start:end], whole[0][start:end]]))


def test_a_slot_of_two_sequences_or_of_none_is_refused() -> None:
    golden = load_golden("mamba2")
    step = make_step(Chunk(golden.prompt, 0, scattered_pages(0)), Chunk(golden.prompt, 0, scattered_pages(1)))
    executor = native(golden.program, golden.weights)
    for slots, message in (
        ([2, 2], "state slot 2 is of two sequences"),
        ([0, 24], r"state slot 24 is not in 0 \.\. 23"),
        ([-1, 0], "state slot -1"),
    ):
        with pytest.raises(ValueError, match=message):
            executor.run(replace(step, state_slots=np.array(slots, np.int32)))
