"""Heads that classify tokens (`...ForTokenClassification`), by model type as `transformers` has them."""

from __future__ import annotations

from headrace.models.heads.classify import modernbert_dense
from headrace.models.heads.layers import HeadLayer, RowHead, by_type
from headrace.weights.config_json import Config
from headrace.weights.head import Head

_ENCODERS = (
    *("bert", "roberta", "xlm_roberta", "xlm_roberta_xl", "camembert", "mpnet"),
    *("electra", "distilbert", "deberta_v2", "modernbert"),
    *("nomic_bert", "gte", "new", "jina_embeddings_v3", "albert", "t5", "mt5"),
)
_DECODERS = ("llama", "mistral", "qwen2", "qwen3", "gemma2")
_OUTPUTS: dict[str, str] = {
    **dict.fromkeys(_ENCODERS, "classifier"),
    **dict.fromkeys(_DECODERS, "score"),
}


def read(config: Config, model_type: str, head: Head) -> RowHead:
    """The head of a config. Raises UnsupportedModel where the model type has none that is known here."""
    output = by_type(_OUTPUTS, model_type, "classifies tokens")
    before = (modernbert_dense(config),) if model_type == "modernbert" else ()
    return RowHead("none", (*before, HeadLayer(output, len(head.labels))))
