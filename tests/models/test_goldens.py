"""Every model definition on the NumPy executor against the output of `transformers`."""

from __future__ import annotations

import numpy as np
import pytest

from golden import (
    CAPACITY,
    FOLDER,
    NAMES,
    Chunk,
    encoders_only,
    load_golden,
    make_step,
    relative_error,
    run_greedy,
    scattered_pages,
)
from headrace.executors.reference import ReferenceExecutor
from headrace.models.registry import known_model_types
from headrace.weights.checkpoint import open_checkpoint


@pytest.mark.parametrize("name", NAMES)
def test_numpy_executor_equals_transformers(name: str) -> None:
    golden = load_golden(name)
    executor = ReferenceExecutor(golden.program, golden.weights, CAPACITY)
    logits, tokens = run_greedy(executor, golden)
    assert logits.dtype == np.float32
    assert relative_error(logits, golden.logits) <= 1e-4
    assert tokens == golden.greedy.tolist()


def test_every_model_has_a_golden() -> None:
    covered = set()
    for name in NAMES:
        with open_checkpoint(FOLDER / name) as checkpoint:
            covered.add(checkpoint.config["model_type"])
    assert covered == set(known_model_types()) - encoders_only()  # tested in test_encoders.py


# Not GPT-2: without a rotation, a bias of the keys changes all scores of a row alike, and so nothing.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "gpt2"])
def test_a_wrong_weight_changes_the_output(name: str) -> None:
    golden = load_golden(name)
    for weight in golden.weights:
        changed = golden.weights | {weight: np.ascontiguousarray(golden.weights[weight][..., ::-1])}
        executor = ReferenceExecutor(golden.program, changed, CAPACITY)
        logits = executor.run(make_step(Chunk(golden.prompt, 0, scattered_pages(0))))
        assert relative_error(logits, golden.logits) > 1e-3, weight
