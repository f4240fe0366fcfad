"""The usageMetadata of Google's API as quantities."""

from __future__ import annotations

from collections import Counter

from headrace.economy.quantities import Quantities
from headrace.economy.usage_fields import Fields, UnknownUsage

_MODALITIES = ("TEXT", "IMAGE", "DOCUMENT", "VIDEO", "AUDIO")
_ON_DEMAND = ("", "ON_DEMAND", "TRAFFIC_TYPE_UNSPECIFIED")


def google_usage(fields: Fields) -> Quantities:
    """The prompt includes what was cached; thoughts and prompts of tools are apart from the other counts."""
    traffic = fields.word("trafficType")
    if traffic not in _ON_DEMAND:
        raise UnknownUsage(f"trafficType is {traffic!r}, which is not billed by tokens")
    prompt, cached = fields.count("promptTokenCount"), fields.count("cachedContentTokenCount")
    tools, thoughts = fields.count("toolUsePromptTokenCount"), fields.count("thoughtsTokenCount")
    answer = fields.count("candidatesTokenCount") or fields.count("responseTokenCount")
    fields.ignore("candidatesTokenCount", "responseTokenCount")
    fields.check_total("totalTokenCount", prompt + tools + answer + thoughts)
    read = _by_modality(fields, "cacheTokensDetails", cached)
    given = _by_modality(fields, "promptTokensDetails", prompt)
    given += _by_modality(fields, "toolUsePromptTokensDetails", tools)
    made = _by_modality(fields, "candidatesTokensDetails", answer)
    made += _by_modality(fields, "responseTokensDetails", answer)
    fresh = {kind: max(0, given[kind] - read[kind]) for kind in ("AUDIO", "IMAGE", "VIDEO")}
    other = prompt + tools - cached - sum(fresh.values())
    text = answer - made["AUDIO"] - made["IMAGE"]
    if other < 0 or text < 0 or read["AUDIO"] > cached or made["VIDEO"]:
        raise UnknownUsage("the counts by modality contradict those of the prompt, the cache or the answer")
    return Quantities(
        input=other,
        cache_read=cached - read["AUDIO"],
        cache_read_audio=read["AUDIO"],
        input_audio=fresh["AUDIO"],
        input_image=fresh["IMAGE"],
        input_video=fresh["VIDEO"],
        output=text,
        reasoning=thoughts,
        output_audio=made["AUDIO"],
        output_image=made["IMAGE"],
    )


def _by_modality(fields: Fields, name: str, total: int) -> Counter[str]:
    """Tokens by modality; a document is read as images."""
    found = Counter[str]()
    for entry in fields.entries(name):
        kind = entry.word("modality")
        if kind not in _MODALITIES:
            raise UnknownUsage(f"{name} has the modality {kind!r}, which is not known here")
        found["IMAGE" if kind == "DOCUMENT" else kind] += entry.count("tokenCount")
        entry.refuse_rest()
    if sum(found.values()) > total:
        raise UnknownUsage(f"{name} has {sum(found.values()):,} tokens, of {total:,}")
    return found
