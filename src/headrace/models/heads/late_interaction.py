"""ColBERT (Khattab and Zaharia 2020): a small vector of each token; the engine brings them to length 1."""

from __future__ import annotations

from headrace.errors import UnsupportedModel
from headrace.models.heads.layers import Layer, RowHead
from headrace.weights.config_json import Config, integer
from headrace.weights.modules import Dense

_DIMENSIONS = 128  # of `HF_ColBERT` without a `dim`


def read(config: Config, dense: tuple[Dense, ...]) -> RowHead:
    """The projection: `linear` of the checkpoint, or the Dense modules of its folder."""
    if not dense:
        return RowHead("none", (Layer("linear", integer(config, "dim", _DIMENSIONS), bias=False),))
    return RowHead("none", dense_layers(dense, integer(config, "hidden_size")))


def dense_layers(dense: tuple[Dense, ...], inputs: int) -> tuple[Layer, ...]:
    """Dense modules as layers. Raises UnsupportedModel where one does not fit what is before it."""
    for module in dense:
        if module.inputs != inputs:
            raise UnsupportedModel(
                f"{module.path}/config.json: in_features is {module.inputs:,}, its input has {inputs:,}"
            )
        inputs = module.outputs
    return tuple(Layer(f"{one.path}.linear", one.outputs, one.act, bias=one.bias) for one in dense)
