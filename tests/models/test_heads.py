"""Heads of encoders on every executor against the output of `transformers`; what their files must say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

from golden import FOLDER, Chunk, executor_for, make_step, relative_error, scattered_pages
from headrace.errors import CorruptFile, HeadraceError, UnsupportedModel
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import model_of
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import Model, find_model
from headrace.ops.value import Ints
from headrace.program.fuse import fuse
from headrace.program.program import Program
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.head import Head, read_head

HEADS = FOLDER / "heads"
NAMES = sorted(path.parent.name for path in HEADS.glob("*/config.json"))


def loaded(name: str) -> tuple[Model, Program, ProgramWeights]:
    checkpoint = open_checkpoint(HEADS / name)
    model, _ = model_of(checkpoint.config, HEADS / name, EngineOptions())
    if "masked_lm" in name:
        model = with_masked_lm(checkpoint.config)
    program = verify(record(model.define))
    return model, program, ProgramWeights(checkpoint, program)


def with_masked_lm(config: dict[str, object]) -> Model:
    return find_model(config, head=Head(kind="masked_lm"))


def rows_of(pooling: object, ends: Ints) -> Ints:
    """The rows that are asked for, of texts between these ends."""
    if pooling == "none":
        return np.arange(ends[-1], dtype=np.int32)
    return (ends[:-1] if pooling == "cls" else ends[1:] - 1).astype(np.int32)


@pytest.mark.parametrize("kind", ["numpy", "native", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_equal_transformers(name: str, kind: str) -> None:
    truth = load_file(HEADS / name / "golden.safetensors")
    model, program, parts = loaded(name)
    step = make_step(Chunk(truth["prompt"], 0, scattered_pages(0)))
    step = replace(step, types=truth["types"], rows=rows_of(model.pooling, step.query_starts))
    rows = executor_for(kind, program, parts).run(step)
    assert rows.shape == truth["rows"].shape
    assert relative_error(rows, truth["rows"]) <= 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_a_text_has_the_same_bits_alone_and_in_a_batch(name: str) -> None:
    prompt = load_file(HEADS / name / "golden.safetensors")["prompt"]
    model, program, parts = loaded(name)
    alone = make_step(Chunk(prompt[:19], 0, scattered_pages(1)))
    alone = replace(alone, rows=rows_of(model.pooling, alone.query_starts))
    expected = executor_for("native", program, parts, threads=1).run(alone).copy()
    both = make_step(Chunk(prompt, 0, scattered_pages(2)), Chunk(prompt[:19], 0, scattered_pages(0)))
    both = replace(both, rows=rows_of(model.pooling, both.query_starts))
    rows = executor_for("native", program, parts, threads=3).run(both)
    assert np.array_equal(rows[-len(expected) :], expected)


@pytest.mark.parametrize("name", [name for name in NAMES if "masked_lm" in name])
def test_sparse_vectors_need_no_product_of_all_tokens_with_the_vocabulary(name: str) -> None:
    """Nothing has a row for each token and a column for each entry of the vocabulary: its memory would be
    8 GB for a vocabulary of 250,000 and 8,192 tokens."""
    program = fuse(loaded(name)[1])
    [product] = [one for one in program.instructions if one.name == "max_linear"]
    assert [part.name for part in product.parts] == ["linear", "pool"]
    vocabulary = program.output.shape[1]
    made = [value for one in program.instructions for value in one.outputs]
    assert [value.shape[0] for value in made if value.shape[1] == vocabulary] == ["R", "R"]


def folder_with(tmp_path: Path, **changes: object) -> Path:
    name = "bert_classify"
    target = tmp_path / name
    shutil.copytree(HEADS / name, target)
    config = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return target


@pytest.mark.parametrize(
    ("changes", "activation"),
    [
        ({}, "softmax"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "regression"}, "identity"),
        ({"id2label": {"0": "score"}}, "sigmoid"),
        ({"id2label": {"0": "score"}, "problem_type": "regression"}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        (
            {
                "sentence_transformers": {
                    "activation_fn": "torch.nn.modules.activation.Sigmoid",
                    "version": "5",
                }
            },
            "sigmoid",
        ),
        ({"function_to_apply": "none"}, "identity"),
    ],
)
def test_activations(tmp_path: Path, changes: dict[str, object], activation: str) -> None:
    head = read_head(folder_with(tmp_path, **changes))
    assert head is not None and head.kind == "classify" and head.activation == activation


def test_labels_without_names(tmp_path: Path) -> None:
    head = read_head(folder_with(tmp_path, id2label=None))
    assert head is not None and head.labels == ("LABEL_0", "LABEL_1")
    head = read_head(folder_with(tmp_path / "five", id2label=None, num_labels=5))
    assert head is not None and head.labels[-1] == "LABEL_4"


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, CorruptFile, "2 entries and None for 1"),
        ({"id2label": {"0": "a", "1": [1]}}, CorruptFile, "for 1: it must"),
        ({"id2label": ["a", "b"]}, CorruptFile, "id2label"),
        ({"id2label": {}}, CorruptFile, "id2label"),
        ({"num_labels": 4}, CorruptFile, "num_labels = 4, its id2label names 3"),
        ({"id2label": None, "num_labels": 10**9}, CorruptFile, "num_labels"),
        ({"id2label": {str(i): "" for i in range(70_000)}}, CorruptFile, "70,000 entries"),
        ({"problem_type": "poetry"}, UnsupportedModel, "poetry"),
        ({"function_to_apply": "cosine"}, UnsupportedModel, "cosine"),
        ({"sbert_ce_default_activation_function": "os.system"}, UnsupportedModel, "os.system"),
    ],
)
def test_nonsense_is_refused(
    tmp_path: Path, changes: dict[str, object], error: type[HeadraceError], said: str
) -> None:
    with pytest.raises(error, match=said):
        read_head(folder_with(tmp_path, **changes))
