"""GLiNER checkpoints: scores and entities as the published computation has them, and what is refused."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from gliner_reference import WORD, Reference, gliner_folder
from headrace import LLM
from headrace.errors import (
    ContextLengthExceeded,
    CorruptFile,
    HeadraceError,
    InvalidRequest,
    ModelNotFound,
    UnsupportedModel,
)
from headrace.tasks.entities import Entity

TEXTS = ["John Miller lives in Berlin, since 2019.", "a", "Écoles 👩‍🚀 of Zürich-West: b_c", "two words"]
LABELS = ["person", "city name", "year"]
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {}),
    ("bert", {"num_rnn_layers": 0, "hidden_size": 32, "subtoken_pooling": "mean", "embed_ent_token": False}),
    ("bert", {"num_rnn_layers": 2, "subtoken_pooling": "max", "max_width": 12}),
    ("modernbert", {"subtoken_pooling": "last"}),
    ("modernbert", {"span_mode": "token_level", "model_type": "gliner_uni_encoder_token"}),
    ("bert", {"span_mode": "token_level", "model_type": "gliner_uni_encoder_token", "num_rnn_layers": 0}),
]
EXACT = {"quantization": "keep"}


def middle(reference: Reference) -> float:
    """A threshold in the widest gap between the scores of the upper half."""
    scores = sorted(score for text in TEXTS for score in reference.span_scores(text, LABELS).values())
    places = range(len(scores) // 2, len(scores) * 9 // 10)
    place = max(places, key=lambda place: scores[place + 1] - scores[place])
    return (scores[place] + scores[place + 1]) / 2


def wanted(reference: Reference, text: str, threshold: float, *, flat: bool = True, multi: bool = False) -> list[Entity]:
    """The greedy choice of the package `gliner`: by falling score, what overlaps is left out."""
    places = [found.span() for found in WORD.finditer(text)]
    scores = reference.span_scores(text, LABELS)
    kept: list[tuple[int, int, int]] = []
    for span in sorted(scores, key=lambda span: -scores[span]):
        if scores[span] > threshold and not any(excludes(span, other, flat, multi) for other in kept):
            kept.append(span)
    found: list[Entity] = []
    for first, last, label in sorted(kept, key=lambda span: (span[:2], -scores[span])):
        start, end = places[first][0], places[last][1]
        found.append(Entity(start, end, LABELS[label], text[start:end], scores[first, last, label]))
    return found


def excludes(one: Sequence[int], other: Sequence[int], flat: bool, multi: bool) -> bool:
    if one[:2] == other[:2]:
        return not multi
    apart = one[0] > other[1] or other[0] > one[1]
    inside = (one[0] <= other[0] and one[1] >= other[1]) or (other[0] <= one[0] and other[1] >= one[1])
    return not (apart or (inside and not flat))


def check(found: Sequence[Entity], expected: Sequence[Entity]) -> None:
    assert [(one.start, one.end, one.label, one.text) for one in found] == [
        (one.start, one.end, one.label, one.text) for one in expected
    ]
    for one, other in zip(found, expected, strict=True):
        assert math.isclose(one.score, other.score, abs_tol=1e-4)


@pytest.mark.parametrize(("kind", "changed"), KINDS)
def test_entities_are_those_of_the_published_computation(
    kind: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    folder, reference = gliner_folder(tmp_path / "model", kind, **changed)
    threshold = middle(reference)
    with LLM(folder, cache_dir=None, **EXACT) as llm:
        for flat, multi in ((True, False), (True, True), (False, False), (False, True)):
            found = llm.entities(TEXTS, LABELS, threshold=threshold, flat_ner=flat, multi_label=multi)
            for text, mine in zip(TEXTS, found, strict=True):
                check(mine, wanted(reference, text, threshold, flat=flat, multi=multi))
        assert any(found)


@pytest.mark.parametrize(("kind", "changed"), KINDS)
def test_the_package_gliner_finds_the_same(kind: str, changed: dict[str, Any], tmp_path: Path) -> None:
    gliner = pytest.importorskip("gliner", reason="the package gliner is not installed")
    folder, reference = gliner_folder(tmp_path / "model", kind, seed=3, **changed)
    threshold = middle(reference)
    # A word that the tokenizer leaves out, such as a joiner of emoji, moves all later words of `gliner` by one.
    texts = [text.replace("\u200d", "") for text in TEXTS]
    witness = gliner.GLiNER.from_pretrained(str(folder), local_files_only=True, strict=True)
    with LLM(folder, cache_dir=None, **EXACT) as llm:
        for flat, multi in ((True, False), (False, True)):
            mine = llm.entities(texts, LABELS, threshold=threshold, flat_ner=flat, multi_label=multi)
            theirs = witness.inference(texts, LABELS, threshold=threshold, flat_ner=flat, multi_label=multi)
            for found, other in zip(mine, theirs, strict=True):
                expected = [
                    Entity(one["start"], one["end"], one["label"], one["text"], one["score"]) for one in other
                ]
                check(found, sorted(expected, key=lambda one: (one.start, one.end, -one.score)))
