"""The file of `headrace bench endpoints`: which endpoints are probed, and how."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from headrace.config.names import known_name
from headrace.config.providers import PROVIDER_SETTINGS
from headrace.errors import UsageError
from headrace.inference.attempts import TokenCounts
from headrace.providers.target import Provider, RemoteTarget, read_providers

LENGTHS = (100, 1_000, 10_000, 100_000)
OUTPUT_TOKENS: Mapping[int, int] = {100: 300, 1_000: 1_000, 10_000: 1_500, 100_000: 2_000}
"""Artificial Analysis' lengths of prompts, and of the answers that they ask for."""
MAX_PARALLEL = 100
MAX_PROMPT_TOKENS = 2_000_000
DEFAULT_BUDGET_USD = 0.5


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars per million tokens. `cache_read` None: as `input`."""

    input: float
    output: float
    cache_read: float | None = None

    def usd_of(self, tokens: TokenCounts) -> float:
        """The cost of tokens. Those that are written to a cache cost a quarter more, for an hour
        twice as much, as at Anthropic."""
        cheap = self.input if self.cache_read is None else self.cache_read
        read = tokens.input + tokens.input_audio + 1.25 * tokens.cache_write + 2 * tokens.cache_write_1h
        written = tokens.output + tokens.reasoning + tokens.output_audio
        return (read * self.input + tokens.cache_read * cheap + written * self.output) / 1e6

    def most_usd(self, read: int, written: int) -> float:
        """The most that a request of so many tokens can cost."""
        return (read * max(self.input, self.cache_read or 0.0) + written * self.output) / 1e6

    @property
    def blended(self) -> float:
        """Dollars per million of three tokens of input to one of output."""
        return (3 * self.input + self.output) / 4


class ProbePlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an endpoint is probed; `budget_usd` bounds what one probe of it may cost. `output_tokens` is the
    length of answers, by default that of the prompt's length. `quality_tokens` bounds an answer of the suite.
    """

    prompt_tokens: tuple[int, ...] = LENGTHS[:2]
    parallel: tuple[int, ...] = (1, 10)
    output_tokens: int | None = None
    quality: bool = True
    quality_tokens: int = 1024
    honesty: bool = True
    budget_usd: float = DEFAULT_BUDGET_USD

    def written(self, prompt_tokens: int) -> int:
        """The length of an answer to a prompt of that length."""
        if self.output_tokens is not None:
            return self.output_tokens
        return OUTPUT_TOKENS[max((one for one in LENGTHS if one <= prompt_tokens), default=LENGTHS[0])]


class Endpoint(Struct, frozen=True, kw_only=True):
    """One endpoint. `price` None: that of the price list. `tokenizer` names a model of this machine, or a
    folder, with the endpoint's tokenizer."""

    target: RemoteTarget
    plan: ProbePlan
    price: Price | None
    tokenizer: str | None

    @property
    def name(self) -> str:
        """By which its measurements are kept."""
        return self.target.name


def read_endpoints(path: Path, configured: Mapping[str, object] | None = None) -> list[Endpoint]:
    """The endpoints of a file; `configured` are the settings `providers`. UsageError names what is wrong."""
    try:
        raw = msgspec.toml.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", param="file") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no TOML: {error}", param="file") from None
    for key in raw:
        known_name(key, ["endpoints", "probe"], f"{path}: unknown {key!r}")
    tables: object = raw.get("endpoints")
    if not isinstance(tables, Mapping) or not tables:
        raise UsageError(f"{path} has no table [endpoints.NAME]", param="file")
    common: object = raw.get("probe", {})
    if not isinstance(common, Mapping):
        raise UsageError(f"{path}: probe is no table", param="file")
    reader = _Reader(dict(cast("Mapping[str, Any]", common)), configured or {})
    return [
        reader.endpoint(f"{path}: endpoints.{name}", name, entry)
        for name, entry in cast("Mapping[str, object]", tables).items()
    ]


class _Reader(Struct):
    common: Mapping[str, Any]
    configured: Mapping[str, object]

    def endpoint(self, where: str, name: str, entry: object) -> Endpoint:
        if not isinstance(entry, Mapping):
            raise UsageError(f"{where} is no table", param="file")
        given = dict(cast("Mapping[str, Any]", entry))
        own = ("provider", "model", "price", "tokenizer")
        rows = [*own, *PROVIDER_SETTINGS, *ProbePlan.__struct_fields__]
        for key in given:
            known_name(key, rows, f"{where}: unknown {key!r}")
        provider, model, price, tokenizer = (given.pop(key, None) for key in own)
        planned = {**self.common, **{k: given.pop(k) for k in ProbePlan.__struct_fields__ if k in given}}
        if not isinstance(model, str) or not model:
            raise UsageError(f"{where}.model is missing: the provider's name of the model", param="file")
        if not isinstance(tokenizer, str | None):
            raise UsageError(f"{where}.tokenizer is no name", param="file")
        return Endpoint(
            target=RemoteTarget(
                name=name, provider=self._provider(where, name, provider, given), model=model
            ),
            plan=_plan(where, planned),
            price=None if price is None else _price(where, price),
            tokenizer=tokenizer,
        )

    def _provider(self, where: str, name: str, provider: object, given: dict[str, Any]) -> Provider:
        """That of [providers] in the settings, or of the table itself."""
        if provider is None:
            table = given if "kind" in given else {"dialect": "openai_chat", **given}
            return read_providers({name: table})[name]
        if not isinstance(provider, str):
            raise UsageError(f"{where}.provider is no name", param="file")
        base = self.configured.get(provider, {})
        if not isinstance(base, Mapping):
            raise UsageError(f"providers.{provider} is no table")
        table = {**cast("Mapping[str, Any]", base), **given}
        return read_providers({provider: table})[provider]


def _converted(where: str, value: object, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}", param="file") from None


def _price(where: str, value: object) -> Price:
    price: Price = _converted(f"{where}.price", value, Price)
    for each in (price.input, price.output, price.cache_read or 0.0):
        if not math.isfinite(each) or each < 0:
            raise UsageError(f"{where}.price: {each} is no price: dollars per million tokens", param="file")
    return price


def _plan(where: str, value: Mapping[str, Any]) -> ProbePlan:
    plan: ProbePlan = _converted(where, dict(value), ProbePlan)
    bounds = {
        "prompt_tokens": (plan.prompt_tokens, 50, MAX_PROMPT_TOKENS),
        "parallel": (plan.parallel, 1, MAX_PARALLEL),
        "output_tokens": ((plan.output_tokens,) if plan.output_tokens is not None else (), 1, 100_000),
        "quality_tokens": ((plan.quality_tokens,), 1, 100_000),
    }
    for name, (values, least, most) in bounds.items():
        for one in values:
            if not least <= one <= most:
                raise UsageError(f"{where}.{name} is {one:,}: {least:,} to {most:,}", param="file")
    if not math.isfinite(plan.budget_usd) or plan.budget_usd < 0:
        raise UsageError(f"{where}.budget_usd is {plan.budget_usd}: dollars, 0 or more", param="file")
    return plan
