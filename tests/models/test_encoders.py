"""Every encoder on every executor against the output of `transformers`; pooling, and the files that
configure it.
"""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

from golden import CAPACITY, FOLDER, Chunk, executor_for, make_step, relative_error, scattered_pages
from headrace.errors import UnsupportedModel
from headrace.executors.executor import Executor
from headrace.executors.reference import ReferenceExecutor
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import encoder_types, find_model, known_model_types
from headrace.ops.value import Array, Ints
from headrace.program.program import Program
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.pooling import PoolingKind, read_pooling

ENCODERS = FOLDER / "encoders"
NAMES = sorted(path.parent.name for path in ENCODERS.glob("*/config.json"))


KEY_BIAS = re.compile(r"(key|k_lin|attn\.k|layer_norm_k)\.bias$|Wqkv\.bias\[from 32 of 96\]$")


def program_rotates(program: Program) -> bool:
    return any(instruction.name == "rope" for instruction in program.instructions)


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Output of `transformers`: states [24, hidden] of a prompt whose second half is a second text."""

    prompt: Ints
    types: Ints
    states: Array


def truth_of(name: str) -> Truth:
    return Truth(**load_file(ENCODERS / name / "golden.safetensors"))


def recorded(name: str, pooling: PoolingKind) -> tuple[Program, ProgramWeights]:
    checkpoint = open_checkpoint(ENCODERS / name)
    program = verify(record(find_model(checkpoint.config, pooling=pooling).define))
    return program, ProgramWeights(checkpoint, program)


def executor_of(kind: str, name: str, pooling: PoolingKind = "none", threads: int = 2) -> Executor:
    program, parts = recorded(name, pooling)
    return executor_for(kind, program, parts, threads=threads)


def whole_step(truth: Truth):
    return replace(make_step(Chunk(truth.prompt, 0, scattered_pages(0))), types=truth.types)


@pytest.mark.parametrize("kind", ["numpy", "native", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_states_equal_transformers(name: str, kind: str) -> None:
    truth = truth_of(name)
    states = executor_of(kind, name).run(whole_step(truth))
    assert relative_error(states, truth.states) <= 1e-4


def test_every_encoder_only_type_has_a_golden() -> None:
    decoders = {
        t for t in encoder_types() if hasattr(importlib.import_module(f"headrace.models.{t}"), "define")
    }
    types = {json.loads((ENCODERS / name / "config.json").read_text())["model_type"] for name in NAMES}
    assert types >= {t for t in encoder_types() if t not in decoders}
    assert set(encoder_types()) <= set(known_model_types())


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_weight_changes_the_output(name: str) -> None:
    truth, (program, parts) = truth_of(name), recorded(name, "none")
    weights = {weight: parts.float32(weight) for weight in program.weights}
    for weight in weights:
        if KEY_BIAS.search(weight) and not program_rotates(program):
            continue  # it changes all scores of a row equally, which has no effect
        changed = weights | {weight: np.ascontiguousarray(weights[weight][..., ::-1])}
        states = ReferenceExecutor(program, changed, CAPACITY).run(whole_step(truth))
        assert relative_error(states, truth.states) > 1e-3, weight


@pytest.mark.parametrize("kind", ["numpy", "native", "torch"])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "last"])
def test_pooling(pooling: PoolingKind, kind: str) -> None:
    truth = truth_of("modernbert")
    texts = [truth.prompt[:7], truth.prompt, truth.prompt[3:20]]
    step = make_step(*(Chunk(text, 0, scattered_pages(i)) for i, text in enumerate(texts)))
    states = executor_of("numpy", "modernbert").run(step)
    starts, ends = step.query_starts[:-1], step.query_starts[1:]
    rows = starts if pooling == "cls" else ends - 1
    vectors = executor_of(kind, "modernbert", pooling).run(replace(step, rows=rows.astype(np.int32)))
    of_text = {
        "mean": lambda x: x.mean(0),
        "max": lambda x: x.max(0),
        "cls": lambda x: x[0],
        "last": lambda x: x[-1],
    }[pooling]
    expected = np.stack([of_text(states[a:b]) for a, b in zip(starts, ends, strict=True)])
    assert relative_error(vectors, expected) <= 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_a_text_has_the_same_bits_alone_and_in_a_batch(name: str) -> None:
    truth = truth_of(name)
    alone = make_step(Chunk(truth.prompt[:19], 0, scattered_pages(1)))
    rows = np.array([18], np.int32)
    expected = executor_of("native", name, "mean", threads=1).run(replace(alone, rows=rows)).copy()
    both = make_step(
        Chunk(truth.prompt, 0, scattered_pages(2)), Chunk(truth.prompt[:19], 0, scattered_pages(0))
    )
    rows = np.array([23, 42], np.int32)
    vectors = executor_of("native", name, "mean", threads=3).run(replace(both, rows=rows))
    assert np.array_equal(vectors[1], expected[0])


def test_unsupported_encoder_error_lists_encoder_types() -> None:
    with pytest.raises(UnsupportedModel, match=r"'gpt2' is not supported as an encoder .* bert"):
        find_model({"model_type": "gpt2"}, pooling="mean")


def write_pooling(folder: Path, *, config: object, types: tuple[str, ...]) -> None:
    entries = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("config", "types", "expected"),
    [
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
            ("Transformer", "Pooling"),
            ("mean", False),
        ),
        ({"pooling_mode_cls_token": True}, ("Transformer", "Pooling", "Normalize"), ("cls", True)),
        ({"pooling_mode": "lasttoken"}, ("Transformer", "Pooling", "Normalize"), ("last", True)),
    ],
)
def test_pooling_files(
    tmp_path: Path, config: object, types: tuple[str, ...], expected: tuple[str, bool]
) -> None:
    write_pooling(tmp_path, config=config, types=types)
    pooling = read_pooling(tmp_path)
    assert pooling is not None
    assert (pooling.kind, pooling.normalize) == expected


@pytest.mark.parametrize(
    ("config", "types", "message"),
    [
        (
            {"pooling_mode_weightedmean_tokens": True},
            ("Transformer", "Pooling"),
            "pooling_mode_weightedmean_tokens",
        ),
        ({"pooling_mode_mean_tokens": True}, ("Transformer", "Pooling", "LSTM"), "LSTM"),
        ({"pooling_mode_mean_tokens": True}, ("Transformer", "Pooling", "Normalize", "Dense"), "Dense"),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            ("Transformer", "Pooling"),
            "cls_token",
        ),
    ],
)
def test_unsupported_pooling_files_are_rejected(
    tmp_path: Path, config: object, types: tuple[str, ...], message: str
) -> None:
    write_pooling(tmp_path, config=config, types=types)
    with pytest.raises(UnsupportedModel, match=message):
        read_pooling(tmp_path)


def test_a_folder_without_pooling_files(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None
