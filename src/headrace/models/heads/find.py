"""The definition of a head, by its kind."""

from __future__ import annotations

from headrace.errors import UnsupportedModel
from headrace.models.heads import classify, late_interaction, masked_lm, token_classify
from headrace.models.heads.layers import HeadDefinition, RowHead
from headrace.weights.config_json import Config
from headrace.weights.head import Head
from headrace.weights.modules import Dense
from headrace.weights.pooling import PoolingKind


def find_head(
    config: Config,
    model_type: str,
    hidden: int,
    head: Head | None,
    pooling: PoolingKind,
    dense: tuple[Dense, ...],
) -> HeadDefinition:
    """The head of a model; for an embedder its pooling with the Dense modules behind it. `hidden` is the size
    of its states."""
    if head is None:
        return RowHead(pooling, late_interaction.dense_layers(dense, hidden))
    if head.kind == "classify":
        return classify.read(config, model_type, head)
    if head.kind == "token_classify":
        return token_classify.read(config, model_type, head)
    if head.kind == "masked_lm":
        return masked_lm.read(config, model_type)
    if head.kind == "late_interaction":
        return late_interaction.read(hidden, head.size, dense)
    if head.kind in ("spans", "schema"):
        return RowHead("none", ())
    raise UnsupportedModel(f"a head that does '{head.kind}' is not supported")
