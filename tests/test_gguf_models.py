"""Whole models from GGUF files: the text side and the numbers together."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blocks import GGML, WIDENED, block_model
from gguf_file import gguf_bytes, model_metadata, model_tensors
from golden import CAPACITY, Chunk, make_step
from headrace import LLM, _native
from headrace.errors import TemplateMissing
from headrace.executors.native import NativeExecutor
from headrace.executors.reference import ReferenceExecutor
from headrace.models.registry import find_model
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.packing.packed_weights import WeightSpec, format_of, load_packed
from headrace.weights.quant_types.block_type import BlockType

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def vocabulary(stories: Path) -> dict[str, Any]:
    """The keys of a SentencePiece vocabulary: tokens of the Hugging Face folder, scores of tok512.bin."""
    ids = json.loads((stories / "hf" / "tokenizer.json").read_text())["model"]["vocab"]
    raw = (stories / "tok512.bin").read_bytes()
    scores: list[float] = []
    position = 4
    while position < len(raw):
        score, length = struct.unpack_from("<fI", raw, position)
        scores.append(score)
        position += 8 + length
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": sorted(ids, key=ids.__getitem__),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * 253, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }


def stories_gguf(folder: Path, stories: Path, type: str, embedding: str | None = None, **more: Any) -> Path:
    path = folder / f"stories-{type}.gguf"
    metadata = model_metadata(stories / "hf") | vocabulary(stories) | more
    path.write_bytes(gguf_bytes(metadata, model_tensors(stories / "hf", type, embedding=embedding)))
    return path


@pytest.mark.parametrize("type", ["F32", "F16"])
def test_stories260k_writes_its_documented_text(tmp_path: Path, shared_data: Path, type: str) -> None:
    stories = shared_data / "stories260K"
    with LLM(stories_gguf(tmp_path, stories, type)) as llm:
        text = llm.generate("", temperature=0.0, max_tokens=200).text
    assert text == (stories / "expected_greedy_200.txt").read_text()


def test_stories260k_from_q8_0(tmp_path: Path, shared_data: Path) -> None:
    """The definition, on the dequantized weights, and native products on the blocks as they are write the
    same 200 tokens. Embeddings and keys are wider: rounding those too moves logits by more than the gap
    between the best two tokens at some places."""
    stories = shared_data / "stories260K"
    path = stories_gguf(tmp_path, stories, "Q8_0", embedding="F16")
    for executor in ("numpy", "native"):
        with LLM(path, backend=executor, quantization="keep", kv_cache_dtype="f32") as llm:
            text = llm.generate("", temperature=0.0, max_tokens=200).text
        assert text == (stories / "expected_greedy_200.txt").read_text()
    for weights in ("bf16", "int8", "int4"):
        with LLM(path, quantization=weights) as llm:
            assert llm.generate("Once", temperature=0.0, max_tokens=5).text


@pytest.mark.parametrize("kind", [*GGML, *WIDENED], ids=lambda kind: kind.name)
def test_every_type_runs_as_it_is(tmp_path: Path, kind: BlockType) -> None:
    """Logits of native products against those of float32 on the dequantized weights."""
    path = block_model(tmp_path, kind.name)
    with open_checkpoint(path) as checkpoint:
        program = verify(record(find_model(checkpoint.config).define))
        floats = {name: checkpoint.float32(name) for name in program.weights}
        wanted = [
            WeightSpec(name, *checkpoint.info(name).shape, format_of("keep", checkpoint.info(name).dtype))
            for name, weight in floats.items()
            if weight.ndim == 2
        ]
        pool = _native.Pool(2)
        matrices = load_packed(checkpoint, wanted, pool, cache=None)
    assert {weight.format for weight in matrices.values()} == {kind.name.lower() if kind in GGML else "int8"}
    vectors = {name: weight for name, weight in floats.items() if weight.ndim == 1}
    prompt = np.arange(3, 35, dtype=np.int32)
    step = make_step(Chunk(prompt, 0, np.arange(4, dtype=np.int32)))
    native = NativeExecutor(program, matrices, vectors, CAPACITY, pool=pool, kv_type="f32", poison=True)
    expected = ReferenceExecutor(program, floats, CAPACITY).run(step)
    error = np.square(native.run(step) - expected).mean() / np.square(expected).mean()
    assert np.sqrt(error) <= 0.1


def test_a_split_model_runs_from_any_part(tmp_path: Path, shared_data: Path) -> None:
    stories = shared_data / "stories260K"
    tensors = list(model_tensors(stories / "hf", "F32").items())
    first = model_metadata(stories / "hf") | vocabulary(stories)
    for number, part in enumerate((tensors[:20], tensors[20:])):
        keys = {"split.no": number, "split.count": 2, "split.tensors.count": len(tensors)}
        path = tmp_path / f"stories-{number + 1:05}-of-00002.gguf"
        path.write_bytes(gguf_bytes(keys | first if number == 0 else keys, part))
    with LLM(path) as llm:
        text = llm.generate("", temperature=0.0, max_tokens=50).text
    assert (stories / "expected_greedy_200.txt").read_text().startswith(text)


def test_the_chat_template_of_the_file(tmp_path: Path, shared_data: Path) -> None:
    stories = shared_data / "stories260K"
    messages = [{"role": "user", "content": "Hi"}]
    more = {"tokenizer.chat_template": TEMPLATE}
    with LLM(stories_gguf(tmp_path, stories, "F32", **more)) as llm:
        assert llm.chat(messages, max_tokens=3).text
    with LLM(stories_gguf(tmp_path, stories, "F32")) as llm, pytest.raises(TemplateMissing):
        llm.chat(messages, max_tokens=3)
