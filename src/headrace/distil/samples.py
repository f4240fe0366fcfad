"""What a student reads: windows of a text, or prompts with answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from msgspec import Struct

from headrace.errors import UsageError
from headrace.ops.value import Ints
from headrace.tokenization.tokenizer import Tokenizer

MAX_LINES = 1_000_000
HELD_OUT = 0.05
"""Of the samples, and at least MIN_HELD_OUT of them: what students are tested on, never trained."""
MIN_HELD_OUT, MAX_HELD_OUT = 8, 64
MIN_SAMPLES = 2 * MIN_HELD_OUT


class Sample(Struct, frozen=True, eq=False):
    """Token ids [L], of which those from `first` on are learned."""

    tokens: Ints
    first: int

    @property
    def learned(self) -> int:
        """How many tokens are learned."""
        return len(self.tokens) - self.first

    @property
    def digest(self) -> bytes:
        """Of its content."""
        return hashlib.sha256(f"{self.first} ".encode() + self.tokens.astype("<i4").tobytes()).digest()


class Prompt(Struct, frozen=True):
    """A conversation to be answered, and the answer that is known to be right, if any is."""

    messages: tuple[dict[str, str], ...]
    answer: str | None = None

    @property
    def text(self) -> str:
        """Of the last message."""
        return self.messages[-1]["content"]


class Parts(Struct, frozen=True, eq=False):
    """Samples to train on and samples that are held out."""

    training: tuple[Sample, ...]
    held_out: tuple[Sample, ...]


def windows_of(text: str, tokenizer: Tokenizer, length: int) -> list[Sample]:
    """All windows of `length` tokens of a text, one after the other, each with the token that begins texts.
    UsageError where there are too few."""
    opening = tokenizer.encode("a")[:1]
    has_opening = tokenizer.bos_id is not None and opening == [tokenizer.bos_id]
    begin = np.array(opening if has_opening else [], np.int32)
    ids = np.array(tokenizer.encode(text, add_special=False), np.int32)
    body = length - len(begin)
    rows = [ids[start : start + body] for start in range(0, len(ids) - body + 1, body)]
    if len(rows) < MIN_SAMPLES:
        raise UsageError(
            f"the data has {len(ids):,} tokens, which are {len(rows)} windows of {length}: at least"
            f" {MIN_SAMPLES} are needed; give more data, or a smaller --window",
            param="data",
        )
    return [Sample(np.concatenate([begin, row]), max(len(begin), 1)) for row in rows]


def split(samples: Sequence[Sample]) -> Parts:
    """In an order that the contents decide; the same content is never on both sides. UsageError where there
    are too few."""
    by_digest = {sample.digest: sample for sample in samples}
    order = [by_digest[digest] for digest in sorted(by_digest)]
    count = min(max(int(len(order) * HELD_OUT), MIN_HELD_OUT), MAX_HELD_OUT)
    if len(order) < MIN_SAMPLES:
        raise UsageError(
            f"the data has {len(order)} different samples, at least {MIN_SAMPLES} are needed: give more data",
            param="data",
        )
    return Parts(tuple(order[count:]), tuple(order[:count]))


def shards(samples: Sequence[Sample], tokens: int) -> list[tuple[Sample, ...]]:
    """The samples in batches of about so many tokens, padding included, in their order."""
    found: list[tuple[Sample, ...]] = []
    rest: list[Sample] = []
    for sample in samples:
        longest = max(len(one.tokens) for one in (*rest, sample))
        if rest and longest * (len(rest) + 1) > tokens:
            found.append(tuple(rest))
            rest = []
        rest.append(sample)
    return [*found, tuple(rest)] if rest else found


def read_prompts(text: str, source: str) -> list[Prompt]:
    """A prompt from each line that is not empty: JSON objects have `prompt` or `messages`, and `answer` where
    it is known; other lines are prompts themselves. UsageError names the line."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{source} has no prompts", param="prompts")
    if len(lines) > MAX_LINES:
        raise UsageError(
            f"{source} has {len(lines):,} lines, at most {MAX_LINES:,}: split it", param="prompts"
        )
    return [_prompt(line, f"{source}, line {number}") for number, line in lines]


def _prompt(line: str, where: str) -> Prompt:
    if not line.lstrip().startswith("{"):
        return Prompt(({"role": "user", "content": line.strip()},))
    try:
        read: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: {error}", param="prompts") from None
    given = cast("dict[str, object]", read)
    answer = given.get("answer", given.get("completion"))
    prompt, messages = given.get("prompt", given.get("text")), given.get("messages")
    if answer is not None and not isinstance(answer, str):
        raise UsageError(f"{where}: the answer must be a text", param="prompts")
    if isinstance(prompt, str) and prompt.strip() and messages is None:
        return Prompt(({"role": "user", "content": prompt},), answer)
    if not isinstance(messages, list) or not messages or prompt is not None:
        raise UsageError(f"{where}: give `prompt`, a text, or `messages`, a list", param="prompts")
    found: list[dict[str, str]] = []
    for one in cast("list[Any]", messages):
        role, content = (one.get("role"), one.get("content")) if isinstance(one, dict) else (None, None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if role not in ("system", "user", "assistant") or not isinstance(content, str):
            raise UsageError(f"{where}: each message needs a `role` and a text as `content`", param="prompts")
        found.append({"role": cast("str", role), "content": content})
    if found[-1]["role"] == "assistant" and answer is None:
        answer = found.pop()["content"]
    if not found or found[-1]["role"] != "user":
        raise UsageError(f"{where}: the last message must be the user's", param="prompts")
    return Prompt(tuple(found), answer)
