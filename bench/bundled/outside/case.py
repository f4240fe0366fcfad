"""A prompt of the outside set, and how its answer is scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Answer:
    """What a model gave: its text, and its calls as names with their arguments."""

    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class Case:
    """`is_right` scores an answer; `wanted` is for reading only."""

    job: str
    prompt: str
    wanted: str
    is_right: Callable[[Answer], bool]
    tools: Sequence[dict[str, Any]] = ()


def lines_of(name: str) -> Iterator[str]:
    """The lines of a file of the set without its comments."""
    for line in (HERE / name).read_text().splitlines():
        if not line.startswith("#"):
            yield line
