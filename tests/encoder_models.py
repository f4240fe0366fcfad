"""Tiny loaded models, one for each task of an encoder, under the names that tests of servers ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from head_models import head_model
from headrace.engine.client import LoadedModel
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from tiny import tiny_model

QUERY_PROMPT = "q: "


def _embedder(folder: Path) -> Path:
    path = tiny_model(folder, "encoders/bert")
    settings = {"prompts": {"query": QUERY_PROMPT, "passage": "p: "}, "default_prompt_name": None}
    (path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return path


def _nli(folder: Path) -> Path:
    labels = {"0": "contradiction", "1": "neutral", "2": "entailment"}
    ids = {label: int(key) for key, label in labels.items()}
    return head_model(folder, "heads/bert_classify", id2label=labels, label2id=ids)


def _tokens(folder: Path) -> Path:
    labels = {"0": "O", "1": "B-PER", "2": "I-PER"}
    ids = {label: int(key) for key, label in labels.items()}
    return head_model(folder, "heads/bert_tokens", id2label=labels, label2id=ids)


MAKERS: Mapping[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "decoder": (tiny_model, {}),
    "embedder": (_embedder, {}),
    "classifier": (lambda folder: head_model(folder, "heads/bert_classify"), {}),
    "reranker": (lambda folder: head_model(folder, "heads/qwen3_reward"), {}),
    "nli": (_nli, {}),
    "tokens": (_tokens, {}),
    "states": (lambda folder: tiny_model(folder, "encoders/bert"), {"pooling": "none"}),
    "sparse": (lambda folder: head_model(folder, "heads/bert_masked_lm"), {"pooling": "splade"}),
}


def load_encoders(folder: Path, held: ExitStack, *names: str) -> list[LoadedModel]:
    """The models of those names, each under its name, until `held` is closed."""
    models: list[LoadedModel] = []
    for name in names:
        make, options = MAKERS[name]
        (folder / name).mkdir(parents=True)
        options = {"threads": 1, "cache_dir": None} | options
        model = load_model(str(make(folder / name)), EngineOptions(**options))
        held.callback(model.close)
        models.append(replace(model, name=name))
    return models
