"""One engine with one model, driven by lines of JSON: `{"texts": [...]}` in, `{"seconds": s}` out.

    python bench/encoders/worker.py ENGINE FOLDER THREADS

ENGINE is headrace-int8 (headrace-int8-avx2 where HEADRACE_ISA says so), headrace-bf16, onnxruntime-int8,
openvino-int8, torch-bf16 or infinity-int8. What is measured is everything from texts to vectors. The peers
get what their documentation advises: texts sorted by length, padded in batches of 32. With `"vectors": PATH`
the vectors are saved.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Encode = Callable[[Sequence[str]], np.ndarray]
BATCH, LONGEST = 32, 512


def headrace(folder: Path, threads: int, quantization: str) -> Encode:
    """Ours."""
    from headrace import LLM

    llm = LLM(folder, quantization=quantization, threads=threads, cache_dir=folder / "packed")
    return lambda texts: llm.embed(list(texts))


def batched(tokenizer: Any, run: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Encode:
    """Texts sorted by length, padded, the mean of their states, length 1."""

    def encode(texts: Sequence[str]) -> np.ndarray:
        found: list[np.ndarray | None] = [None] * len(texts)
        encoded = tokenizer.encode_batch(list(texts))
        order = sorted(range(len(texts)), key=lambda at: len(encoded[at].ids))
        for begin in range(0, len(order), BATCH):
            places = order[begin : begin + BATCH]
            longest = max(len(encoded[at].ids) for at in places)
            ids = np.zeros((len(places), longest), np.int64)
            mask = np.zeros_like(ids)
            for row, at in enumerate(places):
                own = encoded[at].ids
                ids[row, : len(own)], mask[row, : len(own)] = own, 1
            states = run({"input_ids": ids, "attention_mask": mask})
            weights = mask[..., None].astype(np.float32)
            vectors = (states * weights).sum(1) / weights.sum(1)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            for row, at in enumerate(places):
                found[at] = vectors[row]
        return np.stack([one for one in found if one is not None])

    return encode


def read_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, which cuts texts that are too long for the model."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return tokenizer


def export_onnx(folder: Path) -> Path:
    """The model as ONNX with attention and norms fused, made once."""
    path = folder / "model.onnx"
    if not path.is_file():
        import torch
        from transformers import AutoModel

        model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval().requires_grad_(False)
        names = ["input_ids", "attention_mask"]
        dynamic = {name: {0: "batch", 1: "length"} for name in (*names, "states")}
        ones = torch.ones(2, 16, dtype=torch.long)
        model.config.return_dict = False

        class States(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
                return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]

        torch.onnx.export(
            States(), (ones, ones), str(path), input_names=names, output_names=["states"],
            dynamic_axes=dynamic, opset_version=17, dynamo=False,
        )  # fmt: skip
    return path


def onnxruntime(folder: Path, threads: int) -> Encode:
    """ONNX Runtime, dynamic int8, with its transformer optimizer where it knows the architecture."""
    import onnxruntime as ort
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer

    quantized = folder / "model.int8.onnx"
    if not quantized.is_file():
        source = export_onnx(folder)
        config = json.loads((folder / "config.json").read_text())
        if config["model_type"] in ("bert", "xlm-roberta"):
            fused = folder / "model.fused.onnx"
            heads, width = config["num_attention_heads"], config["hidden_size"]
            model = optimizer.optimize_model(str(source), "bert", num_heads=heads, hidden_size=width)
            model.save_model_to_file(str(fused))
            source = fused
        quantize_dynamic(
            source,
            quantized,
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": TensorProto.FLOAT},  # fused nodes have no inferred types
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(quantized), options, providers=["CPUExecutionProvider"])
    return batched(read_tokenizer(folder), lambda inputs: session.run(["states"], inputs)[0])


def openvino(folder: Path, threads: int) -> Encode:
    """OpenVINO, weights and activations in int8 by NNCF's calibration."""
    import nncf
    import openvino as ov

    core = ov.Core()
    path = folder / "openvino.xml"
    tokenizer = read_tokenizer(folder)
    if not path.is_file():
        rows = [tokenizer.encode(text).ids for text in json.loads((folder / "calibration.json").read_text())]
        data = [
            {"input_ids": np.array([ids], np.int64), "attention_mask": np.ones((1, len(ids)), np.int64)}
            for ids in rows
        ]
        model = nncf.quantize(
            core.read_model(export_onnx(folder)),
            nncf.Dataset(data),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(data),
        )
        ov.save_model(model, path)
    compiled = core.compile_model(
        str(path), "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    )
    return batched(tokenizer, lambda inputs: compiled(inputs)[0])


def torch_bf16(folder: Path, threads: int) -> Encode:
    """sentence-transformers in bfloat16."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"torch_dtype": torch.bfloat16})
    return lambda texts: model.encode(list(texts), batch_size=BATCH, normalize_embeddings=True)


def infinity(folder: Path, threads: int) -> Encode:
    """infinity's engine in this process, without its HTTP: linear layers in dynamic int8."""
    import torch
    from infinity_emb import AsyncEmbeddingEngine, EngineArgs

    torch.set_num_threads(threads)
    loop = asyncio.new_event_loop()
    arguments = EngineArgs(
        model_name_or_path=str(folder), engine="torch", device="cpu", dtype="int8", bettertransformer=False,
        batch_size=BATCH, model_warmup=False,
    )  # fmt: skip
    embedder = AsyncEmbeddingEngine.from_args(arguments)
    loop.run_until_complete(embedder.astart())
    return lambda texts: np.stack(loop.run_until_complete(embedder.embed(sentences=list(texts)))[0])


def engine(name: str, folder: Path, threads: int) -> Encode:
    """The engine of that name."""
    kind, weights = name.split("-")[:2]
    if kind == "headrace":
        return headrace(folder, threads, weights)
    peers = {"onnxruntime": onnxruntime, "openvino": openvino, "torch": torch_bf16, "infinity": infinity}
    return peers[kind](folder, threads)


def main() -> None:
    """Loads, says so, then does what each line says."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # for what the libraries print
    name, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    began = time.perf_counter()
    encode = engine(name, folder, threads)
    print(json.dumps({"ready_s": time.perf_counter() - began}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        began = time.perf_counter()
        vectors = encode(order["texts"])
        seconds = time.perf_counter() - began
        if "vectors" in order:
            np.save(order["vectors"], np.asarray(vectors, np.float32))
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
