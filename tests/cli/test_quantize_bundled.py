"""`headrace quantize` of the models that ship with headrace: to GGUF and to a folder, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from invocation import Outcome

from headrace.llm import LLM
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.hub.bundled import list_bundled

GREEDY = {"temperature": 0.0, "max_tokens": 24}


@pytest.mark.parametrize("name", ["mini", "nano", "novelette"])
def test_a_bundled_decoder_as_gguf_says_the_same(
    inside: Callable[..., Outcome], tmp_path: Path, name: str
) -> None:
    out = tmp_path / f"{name}.gguf"
    result = inside("quantize", name, str(out), "--quantization", "bf16")
    assert result.code == 0, result
    assert "only headrace reads this file" in result.stderr
    with LLM(name, threads=1, quantization="keep") as before, LLM(str(out), threads=1) as after:
        for prompt in ("It was a dark night, 12 o'clock;\n\n", "list all files"):
            assert after.generate(prompt, **GREEDY).text == before.generate(prompt, **GREEDY).text


def test_a_bundled_encoder_as_gguf_and_as_a_folder(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    texts = ["extract a tar archive", "list all files"]
    with LLM("embed", threads=1) as model:
        wanted = model.embed(texts)
    for out, kind in ((tmp_path / "embed.gguf", "bf16"), (tmp_path / "embed", "bf16")):
        assert inside("quantize", "embed", str(out), "--quantization", kind).code == 0
        with LLM(str(out), threads=1) as model:
            np.testing.assert_allclose(model.embed(texts), wanted, atol=1e-5)


def test_a_tagger_keeps_its_head_in_a_folder_and_is_refused_as_gguf(
    inside: Callable[..., Outcome], tmp_path: Path
) -> None:
    refused = inside("quantize", "tagger", str(tmp_path / "x.gguf"), "--quantization", "bf16")
    assert refused.code == 1 and "a GGUF file cannot hold" in refused.stderr
    assert inside("quantize", "tagger", str(tmp_path / "tagger"), "--quantization", "bf16").code == 0
    with LLM(str(tmp_path / "tagger"), threads=1) as model:
        [found] = model.entities("My name is John Miller and I live in Berlin", ["person"])
    assert [entity.text for entity in found] == ["John Miller"]


@pytest.mark.parametrize("kind", ["int8", "int4", "w4a16"])
def test_a_tensor_counts_once_before(inside: Callable[..., Outcome], tmp_path: Path, kind: str) -> None:
    written = inside("quantize", "novelette", str(tmp_path / "out"), "--quantization", kind, "--json")
    classes = json.loads(written.stdout)["classes"]
    with open_checkpoint(list_bundled()["novelette"]) as checkpoint:
        assert sum(line["tensors"] for line in classes) == len(checkpoint.tensors)
        stored = sum(checkpoint.info(name).nbytes for name in checkpoint.tensors)
    assert sum(line["bytes_before"] for line in classes) == stored
    with open_checkpoint(tmp_path / "out") as out:
        tables = {"INT8"} if kind == "int4" else set[str]()
        assert {line["type"] for line in classes} == {kind.upper(), "BF16", *tables}
        file = (tmp_path / "out" / "model.safetensors").stat().st_size
        assert 0 <= file - sum(line["bytes_after"] for line in classes) < 20_000, out
