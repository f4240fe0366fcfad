"""What a tokenizer.json does to a text, besides its vocabulary, and whether that is bounded.

The parts are those of the `tokenizers` package. Some grow a text without bound or search it with a
backtracking regular expression, so a file can be made that takes gigabytes or hours for a short text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from headrace.struct_types import thread_safe

MAX_TEXT = 4096
"""Characters of a text that a part adds or puts in place of another."""
MAX_GROWTH = 64  # of a text, by all replacements together
MAX_ADDED_TOKENS = 1024  # by post-processors
_MAX_STRIPPED = 64
_HARMLESS = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "BertNormalizer", "Strip", "ByteLevel"}
    | {"Metaspace", "BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Digits", "Punctuation", "Sequence"}
    | {"CharDelimiterSplit", "UnicodeScripts", "BertProcessing", "RobertaProcessing", "TemplateProcessing"}
    | {"WordPiece", "ByteFallback", "Fuse", "BPEDecoder", "Prepend", "Replace", "Split"}
)
_CLASS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_UNBOUNDED = re.compile(r"[*+]|\{\d*,\}")


class Pipeline(msgspec.Struct, frozen=True):
    """The parts of a tokenizer.json, each an object with a `type`."""

    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None


def read_pipeline(data: bytes) -> Pipeline:
    """The parts of a tokenizer.json. Raises ValueError where it is none."""
    return msgspec.json.decode(data, type=thread_safe(Pipeline))


def added_tokens(pipeline: Pipeline) -> int:
    """About how many tokens its post-processors add to a text."""
    count = 0
    for part in _parts(pipeline.post_processor):
        special = _object(part.get("special_tokens"))
        for piece in _list(part.get("single")):
            named = str(_object(_object(piece).get("SpecialToken")).get("id"))
            count += len(_list(_object(special.get(named)).get("ids")))
    return count


def longest_text(pipeline: Pipeline) -> int:
    """Characters of the longest text that a part adds or puts in place of another."""
    return max((len(text) for part in _all(pipeline) for text in _texts(part)), default=0)


def patterns(pipeline: Pipeline) -> list[str]:
    """The texts that parts look for."""
    found = [_pattern(part, "String") for part in _all(pipeline)]
    return [text for text in found if text]


def is_bounded(pipeline: Pipeline) -> bool:
    """Whether every part is known to take time and memory in proportion to a short text."""
    decoders = (part for part in _parts(pipeline.decoder) if part["type"] == "Strip")
    return (
        all(part["type"] in _HARMLESS and _is_simple(_pattern(part, "Regex")) for part in _all(pipeline))
        and _growth(pipeline.normalizer) <= MAX_GROWTH
        and _growth(pipeline.decoder) <= MAX_GROWTH
        and longest_text(pipeline) <= MAX_GROWTH
        and added_tokens(pipeline) <= MAX_ADDED_TOKENS
        and all(part.get("stop") == 0 and 0 <= part.get("start", 0) <= _MAX_STRIPPED for part in decoders)
    )


def _growth(stage: Any) -> float:
    """How many times as long all replacements together can make a text."""
    growth = 1.0
    for part in _parts(stage):
        if part["type"] == "Replace":
            growth *= max(1.0, len(str(part.get("content", ""))) / max(len(_pattern(part, "String")), 1))
    return growth


def _is_simple(pattern: str) -> bool:
    """Whether backtracking takes no more than the square of a text's length: no group is repeated, and no
    alternative has more than two repetitions without a bound."""
    if re.search(r"\\[1-9]", pattern):
        return False
    plain = _CLASS.sub("_", pattern)
    if re.search(r"\)[*+{]", plain):
        return False
    return all(len(_UNBOUNDED.findall(option)) <= 2 for option in _alternatives(plain))


def _alternatives(pattern: str) -> list[str]:
    depth, options = 0, [""]
    for character in pattern:
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            options.append("")
        else:
            options[-1] += character
    return options


def _all(pipeline: Pipeline) -> Iterator[Mapping[str, Any]]:
    for stage in (pipeline.normalizer, pipeline.pre_tokenizer, pipeline.post_processor, pipeline.decoder):
        yield from _parts(stage)


def _parts(stage: Any) -> Iterator[Mapping[str, Any]]:
    """A stage and what it is a sequence of, each with a `type`."""
    part = _object(stage)
    if not part:
        return
    yield {**part, "type": str(part.get("type"))}
    for name in ("normalizers", "pretokenizers", "processors", "decoders"):
        for inner in _list(part.get(name)):
            yield from _parts(inner)


def _pattern(part: Mapping[str, Any], kind: str) -> str:
    text = _object(part.get("pattern")).get(kind)
    return text if isinstance(text, str) else ""


def _texts(part: Mapping[str, Any]) -> Iterator[str]:
    for name in ("content", "prepend", "prefix", "suffix", "replacement", "str_rep", "cleanup"):
        if isinstance(part.get(name), str):
            yield part[name]


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
