"""A model in several processes against one with the same cores: bytes, time, processor time, memory.

    python bench/parallel.py MODEL [--quantization int8] [--prompt 512] [--tokens 64] [--rounds 5]
    python bench/parallel.py qwen2.5-0.5b|llama-3.2-1b ...     random weights of that shape

All ways are loaded, and take turns. Times are medians, as shares of one process's in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors.numpy import save_file

from headrace.engine.client import LoadedModel
from headrace.engine.request import Delta, EngineEvent, EngineRequest, RequestFailed, RequestFinished
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from headrace.weights.hub.bundled import list_bundled

WAYS = {
    "one process": {},
    "tp 2": {"tensor_parallel_size": 2},
    "pp 2": {"pp": 2},
    "tp 2 x pp 2": {"tensor_parallel_size": 2, "pp": 2},
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
    },
    "llama-3.2-1b": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
}
HEAD = 64


def random_shape(target: Path, name: str) -> Path:
    """A folder with random weights of a shape, in float16."""
    shape = SHAPES[name]
    shutil.copytree(list_bundled()["novelette"], target)
    common = {"head_dim": HEAD, "max_position_embeddings": 8192, "tie_word_embeddings": True}
    common |= {"rms_norm_eps": 1e-6, "rope_theta": 500000.0, "torch_dtype": "float16", "hidden_act": "silu"}
    (target / "config.json").write_text(json.dumps(shape | common))
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    keys = shape["num_key_value_heads"] * HEAD
    noise = np.random.default_rng(0).normal(0, 0.02, 1 << 22).astype(np.float16)
    tensors: dict[str, Any] = {}

    def add(tensor: str, *size: int) -> None:
        tensors[tensor] = np.resize(np.roll(noise, 7919 * len(tensors)), size)

    add("model.embed_tokens.weight", shape["vocab_size"], hidden)
    add("model.norm.weight", hidden)
    for layer in range(shape["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for matrix, rows in (("q", hidden), ("k", keys), ("v", keys), ("o", hidden)):
            add(f"{at}self_attn.{matrix}_proj.weight", rows, hidden)
            if shape["model_type"] == "qwen2" and matrix != "o":
                add(f"{at}self_attn.{matrix}_proj.bias", rows)
        add(f"{at}mlp.gate_proj.weight", inner, hidden)
        add(f"{at}mlp.up_proj.weight", inner, hidden)
        add(f"{at}mlp.down_proj.weight", hidden, inner)
        for norm in ("input", "post_attention"):
            tensors[f"{at}{norm}_layernorm.weight"] = np.ones(hidden, np.float16)
    tensors["model.norm.weight"] = np.ones(hidden, np.float16)
    save_file(tensors, target / "model.safetensors")
    return target


class Reply:
    """A request's tokens with their logprobs, and when it had ended."""

    def __init__(self, model: LoadedModel, prompt: tuple[int, ...], tokens: int) -> None:
        self.tokens: list[object] = []
        self._ended = threading.Event()
        params = SamplingParams(temperature=1.0, seed=7, max_tokens=tokens, ignore_eos=True, logprobs=2)
        self.began = time.perf_counter(), processor_s()
        model.engine.submit(EngineRequest(prompt=prompt, params=params, cache=False), self._take)
        self._ended.wait()
        self.wall_s, self.cpu_s = time.perf_counter() - self.began[0], processor_s() - self.began[1]

    def _take(self, events: list[EngineEvent]) -> None:
        for event in events:
            if isinstance(event, Delta):
                self.tokens.append((event.tokens, event.logprobs))
            if isinstance(event, RequestFailed):
                raise SystemExit(str(event.error))
            if isinstance(event, RequestFinished):
                self._ended.set()


def processor_s() -> float:
    """Of this process and its children."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        name = (
            str(random_shape(Path(folder) / "model", given.model)) if given.model in SHAPES else given.model
        )
        print(json.dumps(measured(name, given), indent=2))


def measured(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Of each way: shares of one process's times, whether its bytes are the same, bytes of its processes."""
    models: dict[str, LoadedModel] = {}
    memory: dict[str, list[int]] = {}
    for way in given.ways:
        options = {"quantization": given.quantization, "threads": given.threads, **WAYS[way]}
        context = given.prompt + given.tokens + 64
        before = {process.pid for process in psutil.Process().children()}
        models[way] = load_model(
            name,
            EngineOptions(**options, max_num_seqs=4, max_model_len=context, cache_dir=None),
        )
        fresh = [one for one in psutil.Process().children() if one.pid not in before]
        memory[way] = [one.pid for one in fresh]
    drawn = random.Random(1)
    found: dict[str, dict[str, list[float]]] = {way: {"prompt": [], "tokens": []} for way in models}
    processor: dict[str, dict[str, list[float]]] = {way: {"prompt": [], "tokens": []} for way in models}
    same = dict.fromkeys(models, True)
    for number in range(given.rounds + 1):  # the first one warms up
        prompt = tuple(drawn.randrange(10, 1500) for _ in range(given.prompt))
        replies: dict[str, tuple[Reply, Reply]] = {}
        for way, model in models.items():
            replies[way] = Reply(model, prompt, 1), Reply(model, prompt[:16], given.tokens)
        first = replies[given.ways[0]]
        for way, pair in replies.items():
            same[way] &= all(a.tokens == b.tokens for a, b in zip(pair, first, strict=True))
            for kind, reply in zip(("prompt", "tokens"), pair, strict=True):
                if number:
                    found[way][kind].append(reply.wall_s)
                    processor[way][kind].append(reply.cpu_s)
    table: dict[str, Any] = {"load": os.getloadavg()[0], "threads": given.threads, **vars(given)}
    for way, model in models.items():
        row: dict[str, Any] = {"same_bytes": same[way]}
        for kind in ("prompt", "tokens"):
            base = found[given.ways[0]][kind], processor[given.ways[0]][kind]
            row[f"{kind}_s"] = round(statistics.median(found[way][kind]), 4)
            row[f"{kind}_time"] = round(statistics.median(map(_share, found[way][kind], base[0])), 3)
            row[f"{kind}_processor_time"] = round(
                statistics.median(map(_share, processor[way][kind], base[1])), 3
            )
        planned = model.plan.process_bytes or (model.plan.total_bytes,)  # but for Python and libraries
        row["planned_mb"] = [size - model.plan.base_bytes // len(planned) >> 20 for size in planned]
        row["other_processes_mb"] = [psutil.Process(pid).memory_full_info().uss >> 20 for pid in memory[way]]
        table[way] = row
    for model in models.values():
        model.close()
    return table


def _share(value: float, of: float) -> float:
    return value / of


if __name__ == "__main__":
    main()
