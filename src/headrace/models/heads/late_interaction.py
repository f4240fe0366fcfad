"""ColBERT (Khattab and Zaharia 2020): a small vector of each token; the engine brings them to length 1."""

from __future__ import annotations

from headrace.errors import UnsupportedModel
from headrace.models.heads.layers import HeadLayer, RowHead
from headrace.weights.modules import Dense


def read(hidden: int, size: int, dense: tuple[Dense, ...]) -> RowHead:
    """The projection: `linear` of the checkpoint with `size` outputs, or the Dense modules of its folder."""
    if not dense:
        return RowHead("none", (HeadLayer("linear", size, bias=False),))
    return RowHead("none", dense_layers(dense, hidden))


def dense_layers(dense: tuple[Dense, ...], inputs: int) -> tuple[HeadLayer, ...]:
    """Dense modules as layers. Raises UnsupportedModel where one does not fit what is before it."""
    for module in dense:
        if module.inputs != inputs:
            raise UnsupportedModel(
                f"{module.path}/config.json: in_features is {module.inputs:,}, its input has {inputs:,}"
            )
        inputs = module.outputs
    return tuple(HeadLayer(f"{one.path}.linear", one.outputs, one.act, bias=one.bias) for one in dense)
