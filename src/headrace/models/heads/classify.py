"""Heads that classify texts (`...ForSequenceClassification`), by model type as `transformers` has them."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import UnsupportedModel
from headrace.models.decoder_config import read_act
from headrace.models.heads.layers import Layer, RowHead
from headrace.weights.config_json import Config, boolean, text
from headrace.weights.head import Head

_DECODERS = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")


def _roberta(config: Config, labels: int) -> RowHead:
    return RowHead("cls", (Layer("classifier.dense", act="tanh"), Layer("classifier.out_proj", labels)))


def _electra(config: Config, labels: int) -> RowHead:
    return RowHead("cls", (Layer("classifier.dense", act="gelu"), Layer("classifier.out_proj", labels)))


def _bert(config: Config, labels: int) -> RowHead:
    return RowHead("cls", (Layer("bert.pooler.dense", act="tanh"), Layer("classifier", labels)))


def _distilbert(config: Config, labels: int) -> RowHead:
    return RowHead("cls", (Layer("pre_classifier", act="relu"), Layer("classifier", labels)))


def _deberta(config: Config, labels: int) -> RowHead:
    act = read_act(config, "pooler_hidden_act", "gelu")
    return RowHead("cls", (Layer("pooler.dense", act=act), Layer("classifier", labels)))


def _modernbert(config: Config, labels: int) -> RowHead:
    pooling = text(config, "classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise UnsupportedModel(f"config.json: classifier_pooling '{pooling:.40}' is not supported: cls, mean")
    return RowHead(
        "mean" if pooling == "mean" else "cls", (modernbert_dense(config), Layer("classifier", labels))
    )


def modernbert_dense(config: Config) -> Layer:
    """The layer below the output of all heads of ModernBERT."""
    act = read_act(config, "classifier_activation", "gelu")
    return Layer("head.dense", act=act, norm="head.norm", bias=boolean(config, "classifier_bias", False))


def _decoder(config: Config, labels: int) -> RowHead:
    return RowHead("last", (Layer("score", labels, bias=False),))


_BY_TYPE: dict[str, Callable[[Config, int], RowHead]] = {
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "mpnet": _roberta,
    "electra": _electra,
    "distilbert": _distilbert,
    "deberta-v2": _deberta,
    "modernbert": _modernbert,
    **dict.fromkeys(_DECODERS, _decoder),
}


def read(config: Config, model_type: str, head: Head) -> RowHead:
    """The head of a config. Raises UnsupportedModel where the model type has none that is known here."""
    known = _BY_TYPE.get(model_type.replace("_", "-"), _BY_TYPE.get(model_type))
    if known is None:
        raise UnsupportedModel(
            f"a model_type '{model_type:.60}' that classifies texts is not supported; known:"
            f" {', '.join(_BY_TYPE)}"
        )
    return known(config, len(head.labels))
