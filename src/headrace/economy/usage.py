"""The usage object of a provider's reply as quantities in disjoint classes.

Which provider's it is, its fields say: servers of one dialect differ more than dialects do. Every count must
be accounted for. One that is not known here, contradicts a total or is no whole number refuses the whole, by
name: a wrong bill is worse than a missing one. Sources: the API references of OpenAI (chat completions,
responses), Anthropic (messages), Google (generateContent), Mistral, DeepSeek, Groq, xAI, OpenRouter, Ollama.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, cast

from msgspec import Struct

from headrace.economy.money import MAX_BILL, nano_of
from headrace.economy.quantities import Quantities
from headrace.economy.usage_fields import Fields, UnknownUsage
from headrace.economy.usage_google import google_usage
from headrace.inference.attempts import SO_FAR

MAX_BYTES = 256 * 1024
__all__ = ["ReadUsage", "UnknownUsage", "read_usage"]


class ReadUsage(Struct, frozen=True):
    """What a usage object says. `processing` is the provider's word for how it was processed, "" where it
    does not say; `reported_nano_usd` the cost that it states itself."""

    quantities: Quantities
    processing: str = ""
    reported_nano_usd: int | None = None


def read_usage(raw: bytes) -> ReadUsage:
    """The quantities of a usage object as received. UnknownUsage names what it cannot account for."""
    usage = _parsed(raw)
    if SO_FAR in usage:
        raise UnknownUsage("the usage of all of the answer was not reported")
    for mark, read in _SHAPES.items():
        if mark in usage:
            fields = Fields(usage)
            quantities = read(fields)
            fields.refuse_rest()
            return ReadUsage(quantities, fields.word("service_tier"), _reported(usage))
    raise UnknownUsage(f"the usage has none of the fields {', '.join(_SHAPES)}")


def _parsed(raw: bytes) -> dict[str, Any]:
    if not raw:
        raise UnknownUsage("the reply had no usage")
    if len(raw) > MAX_BYTES:
        raise UnknownUsage(f"the usage has {len(raw):,} bytes, at most {MAX_BYTES:,} are read")
    try:
        usage: object = json.loads(raw, parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UnknownUsage(f"the usage is not JSON: {error}") from None
    if not isinstance(usage, dict):
        raise UnknownUsage("the usage is no JSON object")
    return cast("dict[str, Any]", usage)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _anthropic(fields: Fields) -> Quantities:
    """Input excludes what was read from and written to the cache; output includes thinking."""
    written = fields.count("cache_creation_input_tokens")
    parts = fields.inside("cache_creation")
    five_minutes = parts.count("ephemeral_5m_input_tokens")
    hour = parts.count("ephemeral_1h_input_tokens")
    parts.refuse_rest()
    if fields.has("cache_creation") and five_minutes + hour != written:
        raise UnknownUsage(
            f"cache_creation has {five_minutes:,} + {hour:,} tokens, "
            f"cache_creation_input_tokens is {written:,}"
        )
    tools = fields.inside("server_tool_use")
    searches = tools.count("web_search_requests")
    tools.ignore("web_fetch_requests")  # no charge besides the tokens
    tools.refuse_rest()
    region = fields.word("inference_geo")
    if region not in ("", "global", "not_available"):
        raise UnknownUsage(f"inference_geo is {region!r}, which has a price of its own")
    output, thinking = fields.count("output_tokens"), _thinking(fields)
    return Quantities(
        input=fields.count("input_tokens"),
        cache_read=fields.count("cache_read_input_tokens"),
        cache_write=written - hour,
        cache_write_1h=hour,
        output=_rest("output_tokens", output, thinking),
        reasoning=thinking,
        web_searches=searches,
    )


def _thinking(fields: Fields) -> int:
    details = fields.inside("output_tokens_details")
    thinking = details.count("thinking_tokens") or details.count("reasoning_tokens")
    details.ignore("thinking_tokens", "reasoning_tokens")
    details.refuse_rest()
    return thinking


def _responses(fields: Fields) -> Quantities:
    """OpenAI's responses: input includes what was cached, output includes reasoning."""
    details = fields.inside("input_tokens_details")
    cached, written = details.count("cached_tokens"), details.count("cache_write_tokens")
    audio, images = details.count("audio_tokens"), details.count("image_tokens")
    details.ignore("text_tokens")
    details.refuse_rest()
    given, output, reasoning = fields.count("input_tokens"), fields.count("output_tokens"), _thinking(fields)
    fields.check_total("total_tokens", given + output)
    return Quantities(
        input=_rest("input_tokens", given, cached, written, audio, images),
        cache_read=cached,
        cache_write=written,
        input_audio=audio,
        input_image=images,
        output=_rest("output_tokens", output, reasoning),
        reasoning=reasoning,
    )


def _chat(fields: Fields) -> Quantities:
    """OpenAI's chat completions, and what others made of them."""
    details, made = fields.inside("prompt_tokens_details"), fields.inside("completion_tokens_details")
    given, output = fields.count("prompt_tokens"), fields.count("completion_tokens")
    cached = details.count("cached_tokens")
    written, audio = details.count("cache_write_tokens"), details.count("audio_tokens")
    details.ignore("text_tokens", "image_tokens", "video_tokens")  # have the price of text in chats
    details.refuse_rest()
    cached = _cached(fields, given, cached)
    reasoning, spoken = made.count("reasoning_tokens"), made.count("audio_tokens")
    drawn = made.count("image_tokens")
    # Predicted tokens are part of the completion, accepted or not.
    made.ignore("text_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
    made.refuse_rest()
    fields.ignore("reasoning_tokens")  # Perplexity and DeepSeek repeat it outside of the details
    tools = fields.inside("server_tool_use")
    searches = tools.count("web_search_requests")
    tools.refuse_rest()
    output = _with_reasoning(fields, given, output, reasoning)
    return Quantities(
        input=_rest("prompt_tokens", given, cached, written, audio),
        cache_read=cached,
        cache_write=written,
        input_audio=audio,
        output=_rest("completion_tokens", output, reasoning, spoken, drawn),
        reasoning=reasoning,
        output_audio=spoken,
        output_image=drawn,
        web_searches=searches,
    )


def _with_reasoning(fields: Fields, given: int, output: int, reasoning: int) -> int:
    """The output with its reasoning: the total says whether the provider counts that apart, as xAI does."""
    total = fields.optional("total_tokens")
    apart = reasoning > output if total is None else total == given + output + reasoning
    if total is not None and not apart and total != given + output:
        raise UnknownUsage(f"total_tokens is {total:,}, not {given:,} + {output:,}")
    return output + reasoning if apart else output


def _cached(fields: Fields, given: int, cached: int) -> int:
    """What was read from the cache, also in the fields of DeepSeek and Mistral."""
    hit, miss = fields.optional("prompt_cache_hit_tokens"), fields.optional("prompt_cache_miss_tokens")
    if hit is not None and miss is not None and hit + miss != given:
        raise UnknownUsage(f"{hit:,} cached and {miss:,} other tokens are not the {given:,} of the prompt")
    named = {
        cached,
        *(count for count in (hit, fields.optional("num_cached_tokens")) if count is not None),
    } - {0}
    if len(named) > 1:
        raise UnknownUsage(f"the usage has different counts of cached tokens: {sorted(named)}")
    return max(named, default=0)


def _ollama(fields: Fields) -> Quantities:
    return Quantities(input=fields.count("prompt_eval_count"), output=fields.count("eval_count"))


def _total(fields: Fields) -> Quantities:
    """Jina's and vLLM's of what only reads: one count."""
    return Quantities(input=fields.count("total_tokens"))


def _searches(fields: Fields) -> Quantities:
    """Cohere's `billed_units` of a ranking."""
    return Quantities(rerank_searches=fields.count("search_units"))


def _rest(name: str, total: int, *parts: int) -> int:
    if sum(parts) > total:
        raise UnknownUsage(f"{name} is {total:,}, its parts are {' + '.join(f'{part:,}' for part in parts)}")
    return total - sum(parts)


def _reported(usage: Mapping[str, Any]) -> int | None:
    """The cost that OpenRouter states; with the user's own key at the upstream, what that costs too."""
    cost = usage.get("cost")
    if not isinstance(cost, int | Decimal) or isinstance(cost, bool) or cost < 0:
        return None
    details: Any = usage.get("cost_details")
    upstream: object = None
    if usage.get("is_byok") is True and isinstance(details, dict):
        upstream = cast("dict[str, object]", details).get("upstream_inference_cost")
    try:
        stated = nano_of(cost) + (0 if upstream is None else nano_of(upstream))
    except ValueError:
        return None
    return stated if 0 <= stated <= MAX_BILL else None


_SHAPES: Mapping[str, Callable[[Fields], Quantities]] = {
    "prompt_tokens": _chat,
    "cache_creation_input_tokens": _anthropic,
    "cache_read_input_tokens": _anthropic,
    "server_tool_use": _anthropic,
    "inference_geo": _anthropic,
    "input_tokens": _responses,
    "promptTokenCount": google_usage,
    "totalTokenCount": google_usage,
    "prompt_eval_count": _ollama,
    "eval_count": _ollama,
    "search_units": _searches,
    "total_tokens": _total,
}
"""How to read a usage object that has a field, in the order in which the fields are looked for."""
