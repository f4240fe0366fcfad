"""Heads that classify texts (`...ForSequenceClassification`), by model type as `transformers` has them."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import UnsupportedModel
from headrace.models.decoder_config import read_act
from headrace.models.heads.layers import HeadLayer, RowHead, by_type
from headrace.weights.config_json import Config, boolean, text
from headrace.weights.head import Head

_DECODERS = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")


def _roberta(config: Config, labels: int) -> RowHead:
    return RowHead(
        "cls", (HeadLayer("classifier.dense", act="tanh"), HeadLayer("classifier.out_proj", labels))
    )


def _electra(config: Config, labels: int) -> RowHead:
    return RowHead(
        "cls", (HeadLayer("classifier.dense", act="gelu"), HeadLayer("classifier.out_proj", labels))
    )


def _pooled(at: str) -> Callable[[Config, int], RowHead]:
    """The first token's state through a layer `at` with tanh, as BERT's."""

    def read(config: Config, labels: int) -> RowHead:
        return RowHead("cls", (HeadLayer(at, act="tanh"), HeadLayer("classifier", labels)))

    return read


def _distilbert(config: Config, labels: int) -> RowHead:
    return RowHead("cls", (HeadLayer("pre_classifier", act="relu"), HeadLayer("classifier", labels)))


def _deberta(config: Config, labels: int) -> RowHead:
    act = read_act(config, "pooler_hidden_act", "gelu")
    return RowHead("cls", (HeadLayer("pooler.dense", act=act), HeadLayer("classifier", labels)))


def _modernbert(config: Config, labels: int) -> RowHead:
    pooling = text(config, "classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise UnsupportedModel(f"config.json: classifier_pooling '{pooling:.40}' is not supported: cls, mean")
    return RowHead(
        "mean" if pooling == "mean" else "cls", (modernbert_dense(config), HeadLayer("classifier", labels))
    )


def modernbert_dense(config: Config) -> HeadLayer:
    """The layer below the output of all heads of ModernBERT."""
    act = read_act(config, "classifier_activation", "gelu")
    return HeadLayer("head.dense", act=act, norm="head.norm", bias=boolean(config, "classifier_bias", False))


def _decoder(config: Config, labels: int) -> RowHead:
    return RowHead("last", (HeadLayer("score", labels, bias=False),))


_BY_TYPE: dict[str, Callable[[Config, int], RowHead]] = {
    "bert": _pooled("bert.pooler.dense"),
    **dict.fromkeys(("nomic_bert", "gte", "new"), _pooled("pooler.dense")),
    "albert": _pooled("albert.pooler"),
    **dict.fromkeys(("roberta", "xlm_roberta", "xlm_roberta_xl", "camembert", "mpnet"), _roberta),
    "jina_embeddings_v3": _roberta,
    "electra": _electra,
    "distilbert": _distilbert,
    "deberta_v2": _deberta,
    "modernbert": _modernbert,
    **dict.fromkeys(_DECODERS, _decoder),
}


def read(config: Config, model_type: str, head: Head) -> RowHead:
    """The head of a config. Raises UnsupportedModel where the model type has none that is known here."""
    return by_type(_BY_TYPE, model_type, "classifies texts")(config, len(head.labels))
