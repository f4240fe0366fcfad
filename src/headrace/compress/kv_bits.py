"""Bits for keys and values of each layer, by what each loses."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import UsageError
from headrace.executors.kv_layers import KV_BITS, LayerType

_FROM_4_BITS: tuple[LayerType, ...] = ("int4", "k8v4", "int8")
_FROM_3_BITS: tuple[LayerType, ...] = ("int3", "k3v4", "k4v3", *_FROM_4_BITS)


def choices_for(budget: float) -> tuple[LayerType, ...]:
    """The types of layers within a mean of `budget` bits, the smallest first; UsageError for too few or many.
    With 3 bits a layer loses several times what it loses with 4, so they are for budgets below 4."""
    least = mean_bits((_FROM_3_BITS[0],))
    if not budget >= least:
        raise UsageError(
            f"--kv-bits {budget:g} is less than {least:g}: keys and values have 3, 4 or 8 bits",
            param="kv_bits",
        )
    most = mean_bits((_FROM_4_BITS[-1],))
    if budget > most:
        raise UsageError(
            f"--kv-bits {budget:g} is more than the {most:g} of int8: use --kv-cache-dtype int8, or bf16",
            param="kv_bits",
        )
    return _FROM_4_BITS if budget >= mean_bits((_FROM_4_BITS[0],)) else _FROM_3_BITS


def mean_bits(types: tuple[LayerType, ...]) -> float:
    """Of a number, without scales."""
    return sum(sum(KV_BITS[type]) for type in types) / (2 * len(types))


def allocate(
    losses: Mapping[tuple[int, LayerType], float], layers: int, budget: float
) -> tuple[LayerType, ...]:
    """The types of all layers: from the fewest bits on, whatever saves most loss per bit, while the mean is
    within `budget`. `losses` are those of one layer alone in a type. UsageError for too small a budget."""
    choices = choices_for(budget)
    chosen: list[LayerType] = [choices[0]] * layers
    while True:
        steps: list[tuple[float, int, LayerType]] = [
            (
                (losses[layer, chosen[layer]] - losses[layer, wanted])
                / (_bits(wanted) - _bits(chosen[layer])),
                -layer,
                wanted,
            )
            for layer in range(layers)
            for wanted in choices
            if _bits(wanted) > _bits(chosen[layer])
            and mean_bits((*chosen[:layer], wanted, *chosen[layer + 1 :])) <= budget + 1e-9
        ]
        if not steps:
            return tuple(chosen)
        _, layer, wanted = max(steps)
        chosen[-layer] = wanted


def _bits(type: LayerType) -> int:
    return sum(KV_BITS[type])
