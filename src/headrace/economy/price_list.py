"""The price list of genai-prices, an optional dependency: dated prices of many providers' models."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from headrace.economy.quantities import CLASSES, REQUEST, REQUEST_KEY, REQUEST_UNIT
from headrace.economy.rates import Rates, UnitPrice, Unpriced, rate_of
from headrace.economy.tiers import Tier

PACKAGE = "genai_prices"
_PROVIDERS: Mapping[str, str] = {"xai": "x-ai", "gemini": "google", "bedrock": "aws"}
"""Our names of providers that the list calls otherwise. Others must be equal: the list itself also takes
names that merely contain a provider's."""
_AUDIO_AS_TEXT = frozenset({"google", "gemini"})
"""Where a model without a price for audio has one price for all. Elsewhere the list may just lack it, as it
does for OpenAI's audio models, whose audio costs many times as much as text."""
_CONTEXTS: Mapping[Tier, tuple[Mapping[str, str], ...]] = {
    "batch": ({"processing": "batch"},),
    "flex": ({"service_tier": "flex"},),
    "priority": ({"service_tier": "priority"},),
    "fast": ({"service_tier": "fast"}, {"speed": "fast"}),
}
_CLASS_OF = {kind.price_key: name for name, kind in CLASSES.items()}
_NEVER_IN_USAGE = frozenset({
    # Units that no usage which `usage.py` reads can have: these quantities are refused there.
    *("audio_hours", "input_audio_hours", "output_audio_hours", "input_mchars", "input_gpixels"),
    *("input_document_kpages", "input_annotated_document_kpages", "input_text_messages_kcount"),
    *("storage_searches_kcount", "social_searches_kcount", "code_executions_kcount"),
    *("output_citation_mtok", "output_video_mtok", "cache_image_read_mtok", "cache_video_read_mtok"),
})  # fmt: skip


class PriceList:
    """The installed list, read on first use (0.4 s). Without the package it has no prices, and says so."""

    def __init__(self) -> None:
        self._snapshot: Any = None

    @property
    def installed(self) -> bool:
        """Whether the package is there."""
        return importlib.util.find_spec(PACKAGE) is not None

    @property
    def version(self) -> str:
        """Name and version, as entries of the ledger keep it."""
        return (
            f"genai-prices {importlib.metadata.version('genai-prices')}"
            if self.installed
            else "no price list"
        )

    def rates(self, provider: str, model: str, tier: Tier, unix_s: float) -> Rates:
        """The rates of a model at a time. Raises Unpriced that says what the list does not have."""
        found, own = self._model(provider, model)
        at = datetime.fromtimestamp(unix_s, UTC)
        context = None if tier == "standard" else self._context(found, own, tier, at, f"{provider}/{model}")
        prices: dict[str, Any] = found.get_prices(at, context).__dict__
        by_class: dict[str, UnitPrice] = {}
        for key, price in prices.items():
            if price is None or key.startswith("_") or key in _NEVER_IN_USAGE:
                continue
            name = REQUEST if key == REQUEST_KEY else _CLASS_OF.get(key)
            if name is None:
                raise Unpriced(
                    f"{self.version} prices {provider}/{model} by {key!r}, which is not known here"
                )
            by_class[name] = _rate(price, REQUEST_UNIT if name == REQUEST else CLASSES[name].unit)
        return Rates(by_class, self.version, audio_as_text=provider in _AUDIO_AS_TEXT)

    def _model(self, provider: str, model: str) -> tuple[Any, bool]:
        """The list's entry, and whether it is the provider's own, which only those with variants are."""
        if not self.installed:
            raise Unpriced("there is no price list: pip install 'headrace[gateway]', or set [prices]")
        if self._snapshot is None:
            self._snapshot = importlib.import_module(f"{PACKAGE}.data_snapshot").get_snapshot()
        provider_id = _PROVIDERS.get(provider, provider)
        owner = next((one for one in self._snapshot.providers if one.id == provider_id), None)
        if owner is None:
            raise Unpriced(f'{self.version} has no provider {provider!r}: set [prices."{provider}/{model}"]')
        found = owner.find_model(model, all_providers=self._snapshot.providers)
        if found is None:
            raise Unpriced(
                f'{self.version} has no model {provider}/{model}: set [prices."{provider}/{model}"]'
            )
        return found, any(found is one for one in owner.models)

    def _context(self, found: Any, own: bool, tier: Tier, at: datetime, name: str) -> Mapping[str, str]:
        """The list's words for a way of processing. Raises Unpriced where the model has no price for it then:
        the list would return its standard price."""
        for context in _CONTEXTS[tier]:
            for variant in found.price_variants or () if own else ():
                if variant.when == context and (variant.constraint is None or variant.constraint.active(at)):
                    return context
        raise Unpriced(f"{self.version} has no price for {tier} processing of {name} on {at:%Y-%m-%d}")


def _rate(price: Any, unit: int) -> UnitPrice:
    try:
        if isinstance(price, Decimal):
            return UnitPrice(rate_of(price, unit))
        tiers = tuple((int(tier.start), rate_of(tier.price, unit)) for tier in price.tiers)
        return UnitPrice(rate_of(price.base, unit), tiers)
    except ValueError as error:
        raise Unpriced(str(error)) from None
