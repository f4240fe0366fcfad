"""AutoRound, 4 and 8 bits (Cheng et al. 2023, https://arxiv.org/abs/2309.05516), stored as GPTQ or AWQ are.

`packing_format` says which: auto_round:auto_gptq (what it is without one) or auto_round:auto_awq.
"""

from __future__ import annotations

from typing import cast

from headrace.errors import UnsupportedModel
from headrace.weights.config_json import Config, integer, text
from headrace.weights.config_json import find as find_field
from headrace.weights.quantized import awq, gptq
from headrace.weights.quantized.quantized_tensor import QuantizedTensor
from headrace.weights.quantized.raw_tensors import RawTensorReader

_PACKINGS = {
    "auto_round:auto_gptq": gptq.find,
    "auto_round:gptqmodel": gptq.find,
    "auto_round:auto_awq": awq.find,
}
_PLAIN_BITS = 16


def find(stored: RawTensorReader, config: Config) -> dict[str, QuantizedTensor]:
    """Every layer that has a `qweight`. UnsupportedModel for other packings, and for layers with bits or
    groups of their own."""
    packing = text(config, "packing_format", "auto_round:auto_gptq")
    if packing not in _PACKINGS:
        known = ", ".join(_PACKINGS)
        raise UnsupportedModel(f"AutoRound packed as {packing[:40]!r} is not supported; known: {known}")
    own = find_field(config, "extra_config")
    shared = {key: integer(config, key, 0, minimum=-1) for key in ("bits", "group_size")}
    layers = cast("dict[str, object]", own) if isinstance(own, dict) else {}
    for name, settings in layers.items():
        found = cast("dict[str, object]", settings) if isinstance(settings, dict) else {}
        bits = found.get("bits", shared["bits"])
        differs = any(found.get(key, value) != value for key, value in shared.items())
        if differs and not (isinstance(bits, int) and bits >= _PLAIN_BITS):
            raise UnsupportedModel(
                f"this AutoRound checkpoint gives {name[:80]!r} bits or groups of its own, which is not"
                " supported; the nearest that is: one setting, with layers left in 16 bits"
            )
    return _PACKINGS[packing](stored, config)
