"""SPLADE (Formal et al. 2021): weights of vocabulary entries, max over tokens of log(1 + relu(logit)) of the
head of masked language modeling, whose output matrix is the token table.
"""

from __future__ import annotations

from msgspec import Struct

from headrace.errors import UnsupportedModel
from headrace.models.decoder_config import DecoderConfig, read_act
from headrace.models.heads.classify import modernbert_dense
from headrace.models.heads.layers import HeadLayer, by_type, pooled
from headrace.ops.act import act
from headrace.ops.builder import Builder
from headrace.ops.linear import linear
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, integer
from headrace.weights.pooling import PoolingKind

# The layer, the token table and the bias of the output.
_NAMES: dict[str, tuple[str, str, str, str]] = {
    "bert": (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "bert.embeddings.word_embeddings",
        "cls.predictions.bias",
    ),
    "distilbert": (
        "vocab_transform",
        "vocab_layer_norm",
        "distilbert.embeddings.word_embeddings",
        "vocab_projector.bias",
    ),
    "albert": (
        "predictions.dense",
        "predictions.LayerNorm",
        "albert.embeddings.word_embeddings",
        "predictions.bias",
    ),
    "nomic_bert": (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.layer_norm",
        "embeddings.word_embeddings",
        "cls.predictions.bias",
    ),
    **dict.fromkeys(
        ("gte", "new"),
        ("lm_head.dense", "lm_head.norm", "embeddings.word_embeddings", "lm_head.decoder.bias"),
    ),
    "modernbert": ("head.dense", "head.norm", "model.embeddings.tok_embeddings", "decoder.bias"),
    **{
        name: ("lm_head.dense", "lm_head.layer_norm", f"{base}.embeddings.word_embeddings", "lm_head.bias")
        for name, base in (
            ("roberta", "roberta"),
            ("xlm_roberta", "roberta"),
            ("xlm_roberta_xl", "roberta"),
            ("jina_embeddings_v3", "roberta"),
            ("camembert", "roberta"),
            ("mpnet", "mpnet"),
        )
    },
}

# Others have gelu whatever the config says.
_ACT_OF_LAYERS = ("bert", "distilbert", "albert", "nomic_bert", "gte", "new")


class MaskedLm(Struct, frozen=True):
    """The layer before the output, and the names of table and bias."""

    layer: HeadLayer
    table: str
    bias: str | None
    pooling: PoolingKind = "max"

    def define(self, m: Builder, c: DecoderConfig, x: Value) -> Value:
        """Weights [R, V]. The maximum comes first: log(1 + relu(x)) keeps the order."""
        x = self.layer.define(m, c, x)
        table = m.weight(f"{self.table}.weight", c.vocabulary, int(x.shape[1]))
        bias = None if self.bias is None else m.weight(self.bias, c.vocabulary)
        return act(pooled(m, linear(x, table, bias), "max"), kind="log1p_relu")


def read(config: Config, model_type: str) -> MaskedLm:
    """The head of a config. Raises UnsupportedModel where there is none, or its matrix is not the table."""
    name, norm, table, bias = by_type(_NAMES, model_type, "makes sparse vectors")
    if not boolean(config, "tie_word_embeddings", True):
        raise UnsupportedModel("config.json: a masked-LM head whose output is not tied is not supported")
    if model_type == "modernbert":
        has_bias = boolean(config, "decoder_bias", True)
        return MaskedLm(modernbert_dense(config), table, bias if has_bias else None)
    field = "activation" if model_type == "distilbert" else "hidden_act"
    kind = read_act(config, field, "gelu") if model_type in _ACT_OF_LAYERS else "gelu"
    size = integer(config, "embedding_size", 128) if model_type == "albert" else 0
    has_bias = model_type != "nomic_bert" or boolean(config, "mlp_fc1_bias", True)
    layer = HeadLayer(name, size, act=kind, norm=norm, bias=has_bias)
    return MaskedLm(layer, table, bias if has_bias else None)
