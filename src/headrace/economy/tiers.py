"""Ways of processing that providers price differently, by the words that they have for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headrace.economy.rates import Unpriced

Tier = Literal["standard", "batch", "flex", "priority", "fast"]
STANDARD: Tier = "standard"

_WORDS: Mapping[str, Tier] = {
    "": "standard",
    "standard": "standard",
    "default": "standard",
    "auto": "standard",
    "on_demand": "standard",
    "batch": "batch",
    "flex": "flex",
    "priority": "priority",
    "fast": "fast",
}


def tier_of(word: str) -> Tier:
    """The way of processing that a provider's word stands for. Raises Unpriced for an unknown word."""
    tier = _WORDS.get(word.lower())
    if tier is None:
        raise Unpriced(f"the way of processing {word!r} is not known")
    return tier
