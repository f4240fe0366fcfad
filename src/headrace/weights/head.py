"""The head of an encoder: what its output rows are scores of, as the files of a checkpoint say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, cast

from msgspec import Struct

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights import strict_json
from headrace.weights.checkpoint import MAX_CONFIG_BYTES
from headrace.weights.config_json import Config, find, integer, refused, text, texts
from headrace.weights.confined import confined
from headrace.weights.fitted_head import read_fitted
from headrace.weights.gliner2_head import is_gliner2
from headrace.weights.input_rules import colbert_size
from headrace.weights.modules import read_modules
from headrace.weights.span_head import has_span_head

HeadKind = Literal["classify", "token_classify", "masked_lm", "late_interaction", "spans", "schema", "fitted"]
"""Scores of a text for labels, of each token for labels, of a text for the entries of the vocabulary
(SPLADE), vectors of each token for late interaction (ColBERT), states of each token that a span head reads
(GLiNER, the tagger) or a head for spans and classes (GLiNER 2), vectors that a fitted classifier reads
(few_shot.py)."""
Activation = Literal["softmax", "sigmoid", "identity"]
TaskName = Literal[
    "generate",
    "embed",
    "token_embed",
    "sparse_embed",
    "classify",
    "token_classify",
    "entities",
    "rerank",
    "zero_shot",
]
"""What a model can be asked for."""

_TASKS: dict[HeadKind, tuple[TaskName, ...]] = {
    "classify": ("classify",),
    "token_classify": ("token_classify",),
    "masked_lm": ("sparse_embed",),
    "late_interaction": ("token_embed", "rerank"),
    "spans": ("entities",),
    "schema": ("entities", "zero_shot"),
    "fitted": ("classify",),
}
_CLASSIFIES = {"ForSequenceClassification": "classify", "ForTokenClassification": "token_classify"}
_HEAD = re.compile(rf"\w+({'|'.join(_CLASSIFIES)})$")
_COLBERT = frozenset({"HF_ColBERT", "ColBERT"})
_PROBLEMS: dict[str, Activation] = {
    "regression": "identity",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}
_ACTIVATIONS: dict[str, Activation] = {"sigmoid": "sigmoid", "identity": "identity", "softmax": "softmax"}
# Of CrossEncoder in sentence-transformers, the newer first.
_CROSS_ENCODER = ("sentence_transformers.activation_fn", "sbert_ce_default_activation_function")
MAX_LABELS = 1 << 16


class Head(Struct, frozen=True, kw_only=True):
    """`labels` are those of the output numbers, in order; `activation` turns these into probabilities.

    A head with one label is a score: that of a cross-encoder, a reward model or a regression.
    """

    kind: HeadKind
    labels: tuple[str, ...] = ()
    activation: Activation = "identity"
    size: int = 0
    """Numbers of a token's vector, of late interaction without Dense modules."""

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """What a model with this head can be asked for. A classifier of one label scores pairs: a
        cross-encoder; one of entailment tells labels of any kind apart."""
        more: tuple[TaskName, ...] = ()
        if self.kind == "classify" and len(self.labels) == 1:
            more = ("rerank",)
        elif self.kind == "classify" and any(map(is_entailment, self.labels)):
            more = ("zero_shot",)
        return _TASKS[self.kind] + more


def is_entailment(label: str) -> bool:
    """Whether a label of a classifier of pairs says that the second text follows from the first."""
    return label.lower().startswith("entail")


def read_head(folder: Path, config: Config | None = None) -> Head | None:
    """The head that the files of a checkpoint name; None for an embedder, a generator, a single file.

    `config` is that of the folder's config.json, which is read where it is not given. Raises CorruptFile for
    labels that mean nothing, UnsupportedModel for an activation that is not known here.
    """
    if not folder.is_dir():
        return None
    if fitted := read_fitted(folder):
        return Head(kind="fitted", labels=fitted.labels, activation="softmax")
    if has_span_head(folder):
        return Head(kind="schema" if is_gliner2(folder) else "spans")
    if config is None:
        try:
            config = strict_json.read_object(confined(folder, "config.json"), MAX_CONFIG_BYTES)
        except FileNotFoundError:
            return None
    modules = read_modules(folder)
    if modules:
        return _of_modules([module.kind for module in modules])
    for name in texts(config, "architectures") or ():
        if name.endswith("Model"):
            return None  # gte-multilingual-base names the class with its token weights, too, but second
        if name in _COLBERT:
            return Head(kind="late_interaction", size=colbert_size(folder))
        if found := _HEAD.match(name):
            return _classifier(config, found[1])
    return None


def tasks_without_head(*, encodes: bool, of_each_token: bool) -> tuple[TaskName, ...]:
    """What a model without a head can be asked for: it generates, or it encodes texts, and then has a vector
    for each token where its pooling is `none`."""
    if of_each_token:
        return ("token_embed", "embed")
    return ("embed",) if encodes else ("generate",)


def chosen_head(pooling: str, folder: Path, config: Config | None = None) -> Head | None:
    """The head of a model that is loaded with an option `pooling`: "auto" is what the files say, "splade" a
    masked-LM head; another one makes vectors without a head."""
    if pooling == "splade":
        return Head(kind="masked_lm")
    return read_head(folder, config) if pooling == "auto" else None


def _of_modules(kinds: list[str]) -> Head | None:
    if "SpladePooling" in kinds:
        return Head(kind="masked_lm")
    late = "Dense" in kinds and "Pooling" not in kinds
    return Head(kind="late_interaction") if late else None


def _classifier(config: Config, named: str) -> Head:
    labels = _labels(config)
    if named == "ForTokenClassification":
        return Head(kind="token_classify", labels=labels, activation="softmax")
    return Head(kind="classify", labels=labels, activation=_activation(config, len(labels)))


def _activation(config: Config, labels: int) -> Activation:
    """As CrossEncoder of sentence-transformers where the config is one's, else as the pipeline of
    `transformers`."""
    for field in _CROSS_ENCODER:
        named = text(config, field, "")
        if named:
            return _known_activation(field, named)
    if function := text(config, "function_to_apply", ""):
        return "identity" if function == "none" else _known_activation("function_to_apply", function)
    problem = text(config, "problem_type", "")
    if not problem:
        return "sigmoid" if labels == 1 else "softmax"
    if problem not in _PROBLEMS:
        raise UnsupportedModel(
            f"config.json: problem_type '{problem:.60}' is not supported; known: {', '.join(_PROBLEMS)}"
        )
    # A softmax of one number is always 1: the pipeline takes the sigmoid then.
    return "sigmoid" if labels == 1 and problem != "regression" else _PROBLEMS[problem]


def _known_activation(field: str, named: str) -> Activation:
    found = _ACTIVATIONS.get(named.rpartition(".")[2].lower())
    if found is None:
        raise UnsupportedModel(
            f"config.json: {field} '{named:.80}' is not supported; known: {', '.join(_ACTIVATIONS)}"
        )
    return found


def _labels(config: Config) -> tuple[str, ...]:
    """The names of the classes 0 to n - 1, as `id2label` has them; two without a name where it is absent."""
    named = find(config, "id2label")
    if named is None:
        return _unnamed(integer(config, "num_labels", 2, maximum=MAX_LABELS))
    if not isinstance(named, dict) or not 0 < len(cast("dict[str, object]", named)) <= MAX_LABELS:
        raise refused("id2label", _shown(cast("object", named)), f"an object of 1 to {MAX_LABELS:,} names")
    entries = cast("dict[str, object]", named)
    found: list[str] = []
    for number in range(len(entries)):
        label = entries.get(str(number))
        if isinstance(label, bool) or not isinstance(label, str | int):
            raise CorruptFile(
                f"config.json: id2label has {len(entries):,} entries and {label!r:.60} for {number}: it must"
                f" have a name for each of 0 to {len(entries) - 1:,}"
            )
        found.append(str(label))
    count = integer(config, "num_labels", len(found), maximum=2**31 - 1)
    if count != len(found):
        raise CorruptFile(
            f"config.json says num_labels = {count:,}, its id2label names {len(found):,}: correct one"
        )
    return tuple(found)


def _unnamed(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{number}" for number in range(count))


def _shown(value: object) -> object:
    return f"{len(cast('dict[str, object]', value)):,} entries" if isinstance(value, dict) else value
