"""Heads that classify tokens (`...ForTokenClassification`), by model type as `transformers` has them."""

from __future__ import annotations

from headrace.errors import UnsupportedModel
from headrace.models.heads.classify import modernbert_dense
from headrace.models.heads.layers import Layer, RowHead
from headrace.weights.config_json import Config
from headrace.weights.head import Head

_OUTPUTS = dict.fromkeys(
    (
        "bert",
        "roberta",
        "xlm-roberta",
        "camembert",
        "mpnet",
        "electra",
        "distilbert",
        "deberta-v2",
        "modernbert",
    ),
    "classifier",
) | dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma2"), "score")


def read(config: Config, model_type: str, head: Head) -> RowHead:
    """The head of a config. Raises UnsupportedModel where the model type has none that is known here."""
    output = _OUTPUTS.get(model_type.replace("_", "-"), _OUTPUTS.get(model_type))
    if output is None:
        raise UnsupportedModel(
            f"a model_type '{model_type:.60}' that classifies tokens is not supported; known:"
            f" {', '.join(_OUTPUTS)}"
        )
    before = (modernbert_dense(config),) if model_type == "modernbert" else ()
    return RowHead("none", (*before, Layer(output, len(head.labels))))
