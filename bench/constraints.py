"""Cost of constrained decoding: sequences constrained by a JSON Schema compared with as many free ones.

    python bench/constraints.py --config config.json --tokenizer FOLDER [--sequences 16] [--weights int4]

Uses random weights for the config's shapes, and a real tokenizer; free and constrained runs alternate.
Prints the milliseconds per step of both (forced tokens need no step of their own) and the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path

from headrace.bench.random_checkpoint import RandomCheckpoint, read_config_file
from headrace.engine.request import EngineEvent, EngineRequest, RequestFailed, RequestFinished
from headrace.grammar.constraint import Constraint, schema_constraint
from headrace.loading.loader import start
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare_checkpoint
from headrace.sampling.params import SamplingParams
from headrace.tokenization.tokenizer import load_tokenizer

SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "price": {"type": "number"}, "tags": {"enum": ["a", "b"]}},
        "required": ["name", "price", "tags"],
        "additionalProperties": False,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    options = EngineOptions(quantization=asked.weights, max_model_len=512, max_num_seqs=asked.sequences)
    checkpoint = RandomCheckpoint(read_config_file(asked.config))
    tokenizer = load_tokenizer(asked.tokenizer)
    model = start(prepare_checkpoint(checkpoint, options, "random", asked.config, tokenizer, None), options)

    def step_s(constraint: Constraint | None) -> float:
        """Seconds per step of a run, measured while all sequences generate."""
        ended = threading.Semaphore(0)
        params = SamplingParams(max_tokens=asked.tokens, ignore_eos=True, seed=1)

        def sink(events: list[EngineEvent]) -> None:
            if isinstance(events[-1], RequestFailed):
                print(events[-1].error)
            if isinstance(events[-1], RequestFinished | RequestFailed):
                ended.release()

        steps, begin_s = model.engine.status().steps, time.perf_counter()
        for number in range(asked.sequences):
            prompt = tuple(range(100 + number, 116 + number))
            model.engine.submit(EngineRequest(prompt=prompt, params=params, constraint=constraint), sink)
        for _ in range(asked.sequences):
            ended.acquire()
        return (time.perf_counter() - begin_s) / (model.engine.status().steps - steps)

    constraint = schema_constraint(SCHEMA)
    step_s(constraint)  # compiles the grammar
    pairs = [(step_s(None), step_s(constraint)) for _ in range(asked.rounds)]
    model.close()
    free, held = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(held_s / free_s for free_s, held_s in pairs)
    print(f"{asked.sequences} sequences: {free:.2f} ms per step free, {held:.2f} ms constrained: {ratio:.3f}")


if __name__ == "__main__":
    main()
