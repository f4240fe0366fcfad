"""GGUF models as checkpoints: the same tensors, rows and configs as the folders they are made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_file import Stored, encode, gguf_bytes, model_metadata, model_tensors
from golden import FOLDER
from headrace import _native
from headrace.errors import CorruptFile, HeadraceError, ModelNotFound, UnsupportedModel
from headrace.models.registry import find_model
from headrace.program.record import record
from headrace.program.text import format_program
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.gguf.checkpoint import GgufCheckpoint
from headrace.weights.hub.resolver import resolve
from headrace.weights.packing.packed_weights import WeightSpec, format_of, load_packed
from headrace.weights.quant_types import BY_NAME, READABLE, WITHOUT_KERNEL, dequantize

# Not llama3: its rope scaling is a tensor in GGUF. Not qwen2_window: the windows have no key.
GOLDENS = ("llama2", "llama2_bf16", "llama_bias", "llama_head_dim", "llama_linear", "llama_odd")
GOLDENS += ("mistral", "mistral_window", "qwen2", "qwen3", "qwen3_yarn")


def as_gguf(tmp_path: Path, name: str, type: str = "F32", **changes: Any) -> Path:
    """A golden as a GGUF file; None takes a key or a tensor away."""
    metadata = model_metadata(FOLDER / name)
    tensors = model_tensors(FOLDER / name, type)
    for key, value in changes.items():
        table: dict[str, Any] = tensors if isinstance(value, Stored) or key in tensors else metadata
        if value is None:
            del table[key]
        else:
            table[key] = value
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


@pytest.mark.parametrize("name", GOLDENS)
def test_a_golden_comes_back_whole(tmp_path: Path, name: str) -> None:
    with open_checkpoint(FOLDER / name) as folder, open_checkpoint(as_gguf(tmp_path, name)) as file:
        assert file.tensors.keys() == folder.tensors.keys()
        for tensor in folder.tensors:
            assert (file.float32(tensor) == folder.float32(tensor)).all(), tensor
            assert file.info(tensor).shape == folder.info(tensor).shape
        theirs, ours = find_model(folder.config), find_model(file.config)
        assert format_program(record(ours.define)) == format_program(record(theirs.define))
        assert ours.model_type == theirs.model_type or name == "mistral"  # without a window it is a Llama
        assert (frequencies(file.config) == frequencies(folder.config)).all()
        for field in ("eps", "windows", "context", "tied", "vocabulary"):
            assert getattr(ours.config, field) == getattr(theirs.config, field)


@pytest.mark.parametrize("type", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("tensor", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"])
def test_rows_are_those_of_the_whole_tensor(tmp_path: Path, type: str, tensor: str) -> None:
    """Rows of queries and keys change places, so every start and length must find them."""
    name = f"model.layers.0.{tensor}.weight"
    with open_checkpoint(as_gguf(tmp_path, "llama3", type)) as file:
        info, whole = file.info(name), file.float32(name)
        dtype = file.row_dtype(name)
        assert dtype == info.dtype
        row_bytes = BY_NAME[dtype].row_bytes(info.shape[1])
        for start in range(0, info.shape[0], 5):
            for count in (1, 3, 8, info.shape[0] - start):
                count = min(count, info.shape[0] - start)
                out = np.zeros(count * row_bytes + 1, np.uint8)
                file.read_rows(name, start, count, out.data)
                assert out[-1] == 0
                found = dequantize(BY_NAME[dtype], out[:-1]).reshape(count, -1)
                assert (found == whole[start : start + count]).all()


@pytest.mark.parametrize("type", ["F16", "Q8_0"])
def test_packed_weights_are_those_of_the_floats(tmp_path: Path, type: str) -> None:
    with open_checkpoint(as_gguf(tmp_path, "llama3", type)) as file:
        names = [name for name, info in file.tensors.items() if len(info.shape) == 2]
        wanted = [WeightSpec(name, *file.info(name).shape, "f32") for name in names]
        pool = _native.Pool(1)
        packed = load_packed(file, wanted, pool, cache=None)
        for weight in wanted:
            floats = np.ascontiguousarray(file.float32(weight.name))
            alone = np.zeros_like(packed[weight.name].data)
            strips = 0, -(-weight.n // 32)
            _native.pack(
                pool, "f32", floats.view(np.uint8).reshape(-1), "F32", weight.n, weight.k, *strips, alone
            )
            assert (packed[weight.name].data == alone).all(), weight.name


@pytest.mark.parametrize("format", ["int8", "q8_0"])
@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_scales_that_are_no_numbers_are_refused(tmp_path: Path, scale: float, format: str) -> None:
    name, (rows, columns) = "model.layers.0.mlp.up_proj.weight", (64, 32)
    blocks = bytes(34 * 10) + np.float16(scale).tobytes() + bytes([1] * 32) + bytes(34 * (rows - 11))
    path = as_gguf(tmp_path, "llama2", **{"blk.0.ffn_up.weight": Stored("Q8_0", (rows, columns), blocks)})
    with open_checkpoint(path) as file, pytest.raises(CorruptFile, match=f"{name}.*row 10 "):
        load_packed(file, [WeightSpec(name, rows, columns, format)], _native.Pool(1), cache=None)


def test_keep_keeps_every_type() -> None:
    assert [format_of("keep", dtype) for dtype in ("F32", "F16", "BF16")] == ["f32", "f16", "bf16"]
    for kind in READABLE[3:]:
        wanted = "int8" if kind.name in WITHOUT_KERNEL else kind.name.lower()
        assert format_of("keep", kind.name) == wanted
    with pytest.raises(UnsupportedModel, match="type Q1_0 cannot be kept as they are: choose --quantization"):
        format_of("keep", "Q1_0")
    assert format_of("int4", "Q4_K") == "int4"


def test_fingerprint_changes_with_the_file(tmp_path: Path) -> None:
    with open_checkpoint(as_gguf(tmp_path, "llama3", "F32")) as first:
        assert first.fingerprint == first.fingerprint
        before = first.fingerprint
    with open_checkpoint(as_gguf(tmp_path, "llama3", "F16")) as second:
        assert second.fingerprint != before


def test_factors_of_the_rotation(tmp_path: Path) -> None:
    """Llama 3's scaling is stored as divisors of the frequencies."""
    with open_checkpoint(FOLDER / "llama3") as folder:
        scaled = frequencies(folder.config)
        plain = frequencies({**folder.config, "rope_scaling": None})
    assert (plain != scaled).any()
    factors = encode((plain / scaled).astype(np.float32), "F32")
    path = as_gguf(tmp_path, "llama3", **{"rope_freqs.weight": factors})
    with open_checkpoint(path) as file:
        assert "rope_freqs.weight" not in file.tensors
        np.testing.assert_allclose(frequencies(file.config), scaled, rtol=1e-6)


def frequencies(config: dict[str, Any]) -> np.ndarray:
    rope = find_model(config).config.ropes[0]
    assert rope is not None
    return rope.inv_freq


@pytest.mark.parametrize("factors", [np.ones(3), np.zeros(8), np.full(8, np.nan), np.full(8, -1.0)])
def test_wrong_factors_are_refused(tmp_path: Path, factors: np.ndarray) -> None:
    path = as_gguf(tmp_path, "llama3", **{"rope_freqs.weight": encode(factors.astype(np.float32), "F32")})
    with pytest.raises(CorruptFile, match=r"rope_freqs|divisors"), open_checkpoint(path) as file:
        assert file.config["head_dim"] == 16
        find_model(file.config)


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        (
            "general.architecture",
            "mamba",
            UnsupportedModel,
            "'mamba', which is not supported as GGUF; the nearest that is: 'mamba2'; known: deepseek2, fal",
        ),
        ("general.architecture", None, CorruptFile, "'general.architecture' is missing"),
        ("llama.expert_count", 8, UnsupportedModel, "has no place here"),
        ("llama.logit_scale", 2.0, UnsupportedModel, "scaled logits"),
        ("llama.embedding_length", None, CorruptFile, "'llama.embedding_length' is missing, an integer"),
        ("llama.embedding_length", "64", CorruptFile, "is '64', an integer"),
        ("llama.attention.head_count", 0, CorruptFile, "a positive integer expected"),
        ("llama.attention.head_count", True, CorruptFile, "an integer"),
        ("llama.attention.head_count", np.array([4, 2]), UnsupportedModel, "in each layer"),
        ("llama.attention.layer_norm_rms_epsilon", float("inf"), CorruptFile, "a finite number"),
        ("llama.rope.freq_base", -1.0, CorruptFile, "'rope_theta' = -1.0"),
        ("llama.rope.dimension_count", 4, UnsupportedModel, "rope.dimension_count 4 for heads of"),
        ("llama.rope.scaling.type", "longrope", UnsupportedModel, "rope scaling 'longrope'"),
        ("token_embd.weight", None, CorruptFile, "no matrix 'token_embd.weight'"),
        (
            "blk.0.attn_rot_embd.weight",
            encode(np.ones(4, np.float32), "F32"),
            UnsupportedModel,
            "has no place here",
        ),
        (
            "blk.00.attn_q.weight",
            encode(np.ones(4, np.float32), "F32"),
            UnsupportedModel,
            "has no place here",
        ),
        (
            "blk.0.attn_q.weight",
            encode(np.ones((3, 64), np.float32), "F32"),
            CorruptFile,
            "rows for each head",
        ),
        (
            "blk.0.ffn_up.weight",
            Stored("NVFP4", (1, 64), bytes(36)),
            UnsupportedModel,
            "nearest that is: IQ4_NL",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path, key: str, value: Any, error: type[HeadraceError], message: str
) -> None:
    with (
        pytest.raises(error, match=message),
        open_checkpoint(as_gguf(tmp_path, "llama2", **{key: value})) as file,
    ):
        find_model(file.config)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = as_gguf(tmp_path, "llama2", **{"blk.0.ffn_up.weight": None})
    missing = pytest.raises(CorruptFile, match=r"no tensor for 'model\.layers\.0\.mlp\.up_proj\.weight'")
    with open_checkpoint(path) as file, missing:
        file.info("model.layers.0.mlp.up_proj.weight")


def test_equal_numbers_for_every_layer_are_one(tmp_path: Path) -> None:
    heads = json.loads((FOLDER / "llama2" / "config.json").read_text())["num_attention_heads"]
    key = {"llama.attention.head_count": np.array([heads, heads], np.uint32)}
    with open_checkpoint(as_gguf(tmp_path, "llama2", **key)) as file:
        assert file.config["num_attention_heads"] == heads


def test_recommended_sampling(tmp_path: Path) -> None:
    keys = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.25,
    }
    with open_checkpoint(as_gguf(tmp_path, "llama2", **keys)) as file:
        assert file.generation_config == {"temperature": 0.5, "top_k": 20, "repetition_penalty": 1.25}
    with open_checkpoint(as_gguf(tmp_path, "llama2")) as file:
        assert file.generation_config is None


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_gguf(tmp_path, "llama2")
    monkeypatch.chdir(tmp_path)
    assert resolve(path) == path
    assert resolve("llama2.gguf") == Path("llama2.gguf")
    assert resolve("./llama2.gguf") == Path("llama2.gguf")
    with pytest.raises(ModelNotFound, match=r"no file 'x/llama2\.gguf'"):
        resolve("x/llama2.gguf", offline=True)
    with pytest.raises(ModelNotFound, match="there is no file"):
        open_checkpoint(tmp_path / "nowhere.gguf")
    with open_checkpoint(Path("llama2.gguf")) as file:
        assert isinstance(file, GgufCheckpoint)
