"""Which levers would help a request most, and by how much: read from what was measured, not guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType, to_builtins

from headrace.engine.request import Usage
from headrace.engine.step_share import StepShare
from headrace.kv.pages import PAGE_TOKENS

MIN_CACHE_TOKENS = 4 * PAGE_TOKENS
"""A prompt of fewer tokens that are not in the cache has no advice about it."""
_WHY: Mapping[str, str] = {
    "disabled": "the request switched the prefix cache off",
    "cold": "no prompt before it began alike",
    "diverged": "an earlier prompt began alike and went on otherwise: put what changes last",
    "evicted": "it was in the cache and had to go: give the KV cache more memory",
    "in_flight": "another request was reading it just then",
}


class Advice(Struct, frozen=True):
    """A `lever` of "prefix_cache" or "fewer_choices", the tokens that need not be computed with it, and the
    seconds of the request that these took, where that is known."""

    lever: str
    text: str
    saved_tokens: int
    saved_s: float | UnsetType = UNSET


def advice(usage: Usage, shares: Sequence[StepShare]) -> list[dict[str, Any]]:
    """The levers of a prompt, that which saves most first, as they stand in the details of its tree."""
    found = [*_prefix_cache(usage, shares), *_fewer_choices(usage, shares)]
    found.sort(key=lambda one: -one.saved_tokens)
    return [to_builtins(one) for one in found]


def _prefix_cache(usage: Usage, shares: Sequence[StepShare]) -> list[Advice]:
    """What a prompt with the same beginning would find: full pages before the last token."""
    why = _WHY.get(usage.cache_miss_reason or "")
    found = (usage.prompt_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS - usage.cached_tokens
    read = [share for share in shares if share.kind == "prefill"]
    tokens = sum(share.tokens for share in read)
    if why is None or found < MIN_CACHE_TOKENS or not tokens:
        return []
    seconds = sum(share.seconds for share in read) * min(found / tokens, 1.0)
    text = f"with its {found:,} tokens in the prefix cache {1000 * seconds:,.1f} ms less: {why}"
    return [Advice("prefix_cache", text, found, seconds)]


def _fewer_choices(usage: Usage, shares: Sequence[StepShare]) -> list[Advice]:
    steps = sum(share.steps for share in shares if share.kind == "decode")
    choices = round(sum(share.tokens for share in shares if share.kind == "decode") / max(steps, 1))
    if choices < 2:
        return []
    saved = usage.completion_tokens * (choices - 1) // choices
    text = f"with one choice instead of about {choices} there are {saved:,} tokens less to generate"
    return [Advice("fewer_choices", text, saved)]
