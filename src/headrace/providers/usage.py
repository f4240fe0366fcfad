"""Token counts as providers report them: checked, and in disjoint classes."""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.engine.request import Usage
from headrace.inference.attempts import SO_FAR, TokenCounts

MAX_TOKENS = 2**40
MAX_USD = 1_000_000
_NANO = 1_000_000_000
CHARACTERS_PER_TOKEN = 3
"""For estimates where a provider reports nothing: rather too many tokens than too few."""


class ReportedUsage(Struct, frozen=True):
    """Counts of one attempt. `tokens` None: the provider reported none, or none that can be right. `raw` is
    what it sent."""

    tokens: TokenCounts | None = None
    raw: bytes = b""
    nano_usd: int | None = None


def without_key(usage: ReportedUsage, key: str | None) -> ReportedUsage:
    """A report without the provider's key, which its texts may repeat."""
    if not key or key.encode() not in usage.raw:
        return usage
    return replace(usage, raw=usage.raw.replace(key.encode(), b"***"))


def so_far(usage: ReportedUsage) -> ReportedUsage:
    """A report of an answer of which not all was counted: marked so, for the bill will say more."""
    if not usage.raw:
        return usage
    return ReportedUsage(usage.tokens, b'{"%s":%s}' % (SO_FAR.encode(), usage.raw))


def read_object(raw: bytes) -> dict[str, Any] | None:
    """A usage object as a dictionary; None for anything else."""
    try:
        value: object = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def count(fields: Mapping[str, Any] | None, *path: str) -> int:
    """The count at a path of names; 0 where there is none. ValueError for one that cannot be right."""
    value: Any = fields
    for name in path:
        if not isinstance(value, dict):
            return 0
        value = cast("dict[str, Any]", value).get(name)
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"{'.'.join(path)} is {value!r:.40}")
    return value


def nano_usd(value: object) -> int | None:
    """A price in dollars as integer nano-dollars; None for what is no price."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        amount = Decimal(str(value))
    except decimal.InvalidOperation:
        return None
    if not amount.is_finite() or not 0 <= amount <= MAX_USD:
        return None
    return int((amount * _NANO).to_integral_value(decimal.ROUND_HALF_EVEN))


def openai_usage(raw: bytes) -> ReportedUsage:
    """The `usage` of chat completions and completions.

    `prompt_tokens` include cached and audio tokens. `completion_tokens` include those of reasoning, except
    where the total says that these come on top (xAI).
    """
    fields = read_object(raw)
    if fields is None:
        return ReportedUsage(raw=raw)
    cost = nano_usd(fields.get("cost"))
    try:
        prompt, completion = count(fields, "prompt_tokens"), count(fields, "completion_tokens")
        cached = count(fields, "prompt_tokens_details", "cached_tokens") or count(
            fields, "prompt_cache_hit_tokens"
        )
        audio = count(fields, "prompt_tokens_details", "audio_tokens")
        reasoning = count(fields, "completion_tokens_details", "reasoning_tokens")
        spoken = count(fields, "completion_tokens_details", "audio_tokens")
        total = count(fields, "total_tokens")
        if reasoning and total == prompt + completion + reasoning:
            completion += reasoning
        if cached + audio > prompt or reasoning + spoken > completion:
            raise ValueError("a part is larger than the whole")
    except ValueError:
        return ReportedUsage(raw=raw, nano_usd=cost)
    if not prompt and not completion:
        return ReportedUsage(raw=raw, nano_usd=cost)
    tokens = TokenCounts(
        input=prompt - cached - audio,
        cache_read=cached,
        input_audio=audio,
        output=completion - reasoning - spoken,
        reasoning=reasoning,
        output_audio=spoken,
    )
    return ReportedUsage(tokens, raw, cost)


def usage_of(tokens: TokenCounts) -> Usage:
    """The counts as the surfaces report them."""
    read = tokens.input + tokens.cache_read + tokens.cache_write + tokens.cache_write_1h + tokens.input_audio
    return Usage(read, tokens.output + tokens.reasoning + tokens.output_audio, tokens.cache_read)


def estimated(characters: int) -> int:
    """Tokens of a text, rather too many."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def grown(before: TokenCounts | None, after: TokenCounts | None) -> TokenCounts | None:
    """The larger of two reports of one attempt in each class: counts only grow."""
    if before is None or after is None:
        return after or before
    largest = {
        name: max(getattr(before, name), getattr(after, name)) for name in TokenCounts.__struct_fields__
    }
    return TokenCounts(**largest)
