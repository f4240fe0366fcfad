"""Models of llama2.c: the three formats of .bin, the tokenizer beside them, and damaged files."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import LLM
from headrace.errors import CorruptFile, HeadraceError, ModelNotFound, UnsupportedModel
from headrace.weights.checkpoint import open_checkpoint

DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 64, 96, 2, 4, 2, 40, 16
MATRICES = {
    "self_attn.q_proj": (DIM, DIM),
    "self_attn.k_proj": (DIM // 2, DIM),
    "self_attn.v_proj": (DIM // 2, DIM),
    "self_attn.o_proj": (DIM, DIM),
    "mlp.gate_proj": (HIDDEN, DIM),
    "mlp.down_proj": (DIM, HIDDEN),
    "mlp.up_proj": (HIDDEN, DIM),
}
ATTENTION, MLP = list(MATRICES)[:4], list(MATRICES)[4:]
NORMS = ("input_layernorm", "post_attention_layernorm")
Weights = dict[str, np.ndarray]


def random_weights(shared: bool) -> Weights:
    """By the names of the Hugging Face checkpoint, with rows in its order."""
    random = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (VOCABULARY, DIM), "model.norm": (DIM,)}
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in MATRICES.items()}
        shapes |= {f"model.layers.{layer}.{name}": (DIM,) for name in NORMS}
    if not shared:
        shapes["lm_head"] = (VOCABULARY, DIM)
    return {
        f"{name}.weight": (random.integers(-127, 128, shape) / 128).astype(np.float32)
        for name, shape in shapes.items()
    }


def interleaved(w: np.ndarray) -> np.ndarray:
    """Rows of q or k with the two halves of each head in turn."""
    heads = w.reshape(-1, 2, DIM // HEADS // 2, DIM)
    return heads.transpose(0, 2, 1, 3).reshape(w.shape)


def write(path: Path, weights: Weights, *, version: int, shared: bool, group: int = 32) -> None:
    def all_layers(name: str) -> list[np.ndarray]:
        found = [weights[f"model.layers.{layer}.{name}.weight"] for layer in range(LAYERS)]
        return [interleaved(w) for w in found] if name[-6:] in ("q_proj", "k_proj") else found

    matrices = {name: all_layers(name) for name in MATRICES}
    attention, mlp = ([w for name in names for w in matrices[name]] for names in (ATTENTION, MLP))
    first, second = (all_layers(name) for name in NORMS)
    embed, norm = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
    head = [] if shared else [weights["lm_head.weight"]]
    numbers = [DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCABULARY, CONTEXT]
    if version == 0:
        numbers[5] *= 1 if shared else -1
        rotation = np.zeros(CONTEXT * (DIM // HEADS), np.float32)
        order = [embed, *first, *attention, *second, *mlp, norm, rotation, *head]
        path.write_bytes(struct.pack("<7i", *numbers) + b"".join(w.tobytes() for w in order))
        return
    header = b"24ka" + struct.pack("<i7iBi", version, *numbers, shared, group)
    data = b"".join(w.tobytes() for w in [*first, *second, norm])
    for w in [embed, *attention, *mlp, *head]:
        if version == 1:
            data += w.tobytes()
        else:  # the scales are 1 / 128, so that nothing is rounded
            data += (w * 128).astype(np.int8).tobytes() + np.full(w.size // group, 1 / 128, "<f4").tobytes()
    path.write_bytes(header.ljust(256, b"\0") + data)


def write_tokenizer(path: Path, count: int = VOCABULARY) -> None:
    tokens = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{i:02X}>" for i in range(4)), " "]
    tokens = [*tokens, *(chr(97 + i) for i in range(26)), *(f" {chr(97 + i)}" for i in range(count))][:count]
    parts = [struct.pack("<fi", -i, len(token)) + token.encode() for i, token in enumerate(tokens)]
    path.write_bytes(struct.pack("<i", 7) + b"".join(parts))


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("shared", [True, False])
def test_weights_of_each_format(tmp_path: Path, version: int, shared: bool) -> None:
    weights = random_weights(shared)
    path = tmp_path / "model.bin"
    write(path, weights, version=version, shared=shared)
    write_tokenizer(tmp_path / "tokenizer.bin")
    with open_checkpoint(path) as checkpoint:
        assert set(checkpoint.tensors) == set(weights)
        assert checkpoint.config["tie_word_embeddings"] is shared
        for name, expected in weights.items():
            np.testing.assert_array_equal(checkpoint.float32(name), expected, name)
        name = "model.layers.1.self_attn.k_proj.weight"
        row_bytes = checkpoint.info(name).nbytes // (DIM // 2)
        raw = np.empty(9 * row_bytes, np.uint8)
        checkpoint.read_rows(name, 13, 9, raw.data)
        if version < 2:
            np.testing.assert_array_equal(raw.view("<f4").reshape(9, DIM), weights[name][13:22])
    with LLM(path) as llm:
        assert llm.generate("abc", max_tokens=3, temperature=0.0).usage.completion_tokens == 3


def test_stories260k_writes_its_documented_text(shared_data: Path) -> None:
    stories = shared_data / "stories260K"
    with LLM(stories / "stories260K.bin") as llm:
        text = llm.generate("", temperature=0.0, max_tokens=200).text
    assert text == (stories / "expected_greedy_200.txt").read_text()


def test_stories260k_has_the_weights_of_its_folder(shared_data: Path) -> None:
    stories = shared_data / "stories260K"
    with open_checkpoint(stories / "stories260K.bin") as bin, open_checkpoint(stories / "hf") as folder:
        for name in bin.tensors:
            np.testing.assert_array_equal(bin.float32(name), folder.float32(name), name)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    write(path, random_weights(True), version=0, shared=True)
    with pytest.raises(ModelNotFound, match=r"tok40\.bin or tokenizer\.bin"):
        open_checkpoint(path)
    write_tokenizer(tmp_path / "tok40.bin", 39)
    with pytest.raises(CorruptFile, match="damaged at token 39 of 40"):
        open_checkpoint(path)
    write_tokenizer(tmp_path / "tok40.bin", 41)
    with pytest.raises(CorruptFile, match="after 40 tokens"):
        open_checkpoint(path)


def test_what_is_not_llama2c(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CorruptFile, match=r"no llama2\.c model.*never read"):
        open_checkpoint(path)
    write(path, random_weights(True), version=2, shared=True, group=48)
    with pytest.raises(UnsupportedModel, match="groups of 48 inputs for rows of 64 and 96"):
        open_checkpoint(path)
    path.write_bytes(b"24ka" + struct.pack("<i", 3) + bytes(300))
    with pytest.raises(UnsupportedModel, match="version 3; known"):
        open_checkpoint(path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(version=st.sampled_from([0, 1, 2]), data=st.data())
def test_damaged_headers_are_typed_errors(tmp_path: Path, version: int, data: st.DataObject) -> None:
    path, tokenizer = tmp_path / "model.bin", tmp_path / "tokenizer.bin"
    write(path, random_weights(True), version=version, shared=True)
    write_tokenizer(tokenizer)
    target = data.draw(st.sampled_from([path, path, tokenizer]))
    raw = bytearray(target.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        place = data.draw(st.integers(0, 41 if target is path else len(raw) - 1))
        raw[place] ^= 1 << data.draw(st.integers(0, 7))
    target.write_bytes(raw)
    try:
        with open_checkpoint(path) as checkpoint:
            for name in checkpoint.tensors:
                checkpoint.float32(name)
    except HeadraceError:
        pass
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
