"""What a provider bills by, in disjoint classes: the classes of tokens, and what is counted besides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from headrace.inference.attempts import TokenCounts

Direction = Literal["input", "output", "other"]


class Quantities(TokenCounts, frozen=True, kw_only=True):
    """TokenCounts, and the classes that only some providers bill apart. What is cached of images and videos
    is in `cache_read`; `web_searches` are searches, `rerank_searches` rankings of a hundred documents."""

    cache_read_audio: int = 0
    input_image: int = 0
    input_video: int = 0
    output_image: int = 0
    web_searches: int = 0
    rerank_searches: int = 0

    def items(self) -> Iterator[tuple[str, int]]:
        """Classes that are not zero, in their order."""
        return ((name, count) for name, count in zip(CLASSES, _ALL(self), strict=True) if count)

    @property
    def input_side(self) -> int:
        """Tokens of the input in all classes: what tiers of a price go by."""
        return sum(_INPUT(self))

    @property
    def tokens(self) -> TokenCounts:
        """The classes that every part of the program knows; the others are added to the nearest of them."""
        return TokenCounts(
            input=self.input + self.input_image + self.input_video,
            cache_read=self.cache_read + self.cache_read_audio,
            cache_write=self.cache_write,
            cache_write_1h=self.cache_write_1h,
            input_audio=self.input_audio,
            output=self.output + self.output_image,
            reasoning=self.reasoning,
            output_audio=self.output_audio,
        )


class QuantityClass(Struct, frozen=True):
    """A class: the key of its price in genai-prices, how many make that price's unit, and the class whose
    price it has where it has none of its own."""

    price_key: str
    unit: int
    direction: Direction
    parent: str | None = None


_TOKENS = 1_000_000
CLASSES: Mapping[str, QuantityClass] = {
    "input": QuantityClass("input_mtok", _TOKENS, "input"),
    "cache_read": QuantityClass("cache_read_mtok", _TOKENS, "input", "input"),
    "cache_write": QuantityClass("cache_write_mtok", _TOKENS, "input", "input"),
    "cache_write_1h": QuantityClass("cache_write_1h_mtok", _TOKENS, "input", "input"),
    "input_audio": QuantityClass("input_audio_mtok", _TOKENS, "input", "input"),
    "cache_read_audio": QuantityClass("cache_audio_read_mtok", _TOKENS, "input", "input"),
    "input_image": QuantityClass("input_image_mtok", _TOKENS, "input", "input"),
    "input_video": QuantityClass("input_video_mtok", _TOKENS, "input", "input"),
    "output": QuantityClass("output_mtok", _TOKENS, "output"),
    "reasoning": QuantityClass("output_reasoning_mtok", _TOKENS, "output", "output"),
    "output_audio": QuantityClass("output_audio_mtok", _TOKENS, "output", "output"),
    "output_image": QuantityClass("output_image_mtok", _TOKENS, "output", "output"),
    "web_searches": QuantityClass("web_searches_kcount", 1_000, "other"),
    "rerank_searches": QuantityClass("rerank_searches_kcount", 1_000, "other"),
}
_ALL = attrgetter(*CLASSES)
_INPUT = attrgetter(*(name for name, kind in CLASSES.items() if kind.direction == "input"))
REQUEST = "request"
"""The class of a fee for each request, which is no quantity of the usage."""
REQUEST_KEY, REQUEST_UNIT = "requests_kcount", 1_000
TOKEN_CLASSES = tuple(name for name, kind in CLASSES.items() if kind.direction != "other")


def quantities_of(tokens: TokenCounts) -> Quantities:
    """Counts of tokens as quantities."""
    return tokens if isinstance(tokens, Quantities) else Quantities(**asdict(tokens))
