"""Requests of the load: synthetic prompts, prompts from a file, or lengths from a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from headrace.bench.serve.length_distribution import Lengths
from headrace.bench.serve.synthetic_text import SyntheticText, text_of
from headrace.bench.serve.target import Endpoint
from headrace.bench.serve.trace import BLOCK_TOKENS, TraceRequest
from headrace.errors import UsageError

PROMPT_FIELDS = (
    "each line is an object with prompt, messages or turns (the first is used), and optionally max_tokens"
)

Messages = Sequence[Mapping[str, Any]]


class LoadRequest(Struct, frozen=True):
    """One request: a text or a conversation, and the maximum tokens of the answer. `wanted_tokens` is the
    intended prompt length, `at_s` the send time in a trace.
    """

    prompt: str | Messages
    output_tokens: int
    wanted_tokens: int | None = None
    at_s: float = 0.0

    def body(self, model: str, endpoint: Endpoint) -> dict[str, Any]:
        """The fields specific to this request."""
        chat = [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt
        asked = {"messages": chat} if endpoint == "chat" else {"prompt": self.prompt}
        return {"model": model, **asked, "max_tokens": self.output_tokens}


class SyntheticWorkload(Struct, frozen=True):
    """Prompts and answers of random lengths. The n-th request of every point has the same length but new
    words, so that a prefix cache has no hits.
    """

    prompt_tokens: Lengths
    output_tokens: Lengths

    def asks(self, lexicon: SyntheticText, count: int, *, seed: int, point: int) -> list[LoadRequest]:
        """The first `count` requests."""
        lengths, words = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2, point])
        return [
            _made_up(lexicon, self.prompt_tokens.draw(lengths), self.output_tokens.draw(lengths), words)
            for _ in range(count)
        ]


class DatasetWorkload(Struct, frozen=True):
    """The prompts of a JSONL file, in order, repeated from the beginning if necessary."""

    path: Path
    prompts: tuple[LoadRequest, ...]

    def asks(self, lexicon: SyntheticText, count: int, *, seed: int, point: int) -> list[LoadRequest]:
        """The first `count` requests; the same for every point."""
        return [self.prompts[index % len(self.prompts)] for index in range(count)]


class TraceWorkload(Struct, frozen=True):
    """Requests with a trace's lengths. If the trace has blocks, equal blocks become equal words, so that
    prompts share the same prefixes. `left_out` requests of the trace were excluded.
    """

    path: Path
    requests: tuple[TraceRequest, ...]
    left_out: int = 0

    def asks(self, lexicon: SyntheticText, count: int, *, seed: int, point: int) -> list[LoadRequest]:
        """The first `count` requests. Words are new for each point."""
        rng = np.random.default_rng([seed, 2, point])
        blocks: dict[tuple[int, int], list[str]] = {}

        def block_words(block: int, tokens: int) -> list[str]:
            if (block, tokens) not in blocks:
                blocks[block, tokens] = lexicon.words_of(
                    tokens, np.random.default_rng([seed, 3, point, block])
                )
            return blocks[block, tokens]

        asks: list[LoadRequest] = []
        for one in self.requests[:count]:
            if one.blocks:
                words = [word for block in _sizes(one, lexicon) for word in block_words(*block)]
                asks.append(LoadRequest(text_of(words), one.output_tokens, one.prompt_tokens, one.at_s))
            else:
                made = _made_up(lexicon, one.prompt_tokens, one.output_tokens, rng)
                asks.append(replace(made, at_s=one.at_s))
        return asks


def _sizes(request: TraceRequest, lexicon: SyntheticText) -> Iterator[tuple[int, int]]:
    """Each block with its tokens; the first includes what the server adds to every prompt."""
    for index, block in enumerate(request.blocks):
        tokens = min(BLOCK_TOKENS, request.prompt_tokens - index * BLOCK_TOKENS)
        yield block, tokens - (lexicon.base_tokens if index == 0 else 0)


Workload = SyntheticWorkload | DatasetWorkload | TraceWorkload


def _made_up(
    lexicon: SyntheticText, prompt_tokens: int, output_tokens: int, rng: np.random.Generator
) -> LoadRequest:
    words = lexicon.words_of(prompt_tokens - lexicon.base_tokens, rng)
    return LoadRequest(text_of(words), output_tokens, prompt_tokens)


def read_prompts(path: Path, endpoint: Endpoint, output_tokens: int) -> DatasetWorkload:
    """Prompts from JSON lines; `output_tokens` is the default per line. UsageError names the line."""
    found: list[LoadRequest] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path} cannot be read: {error}", param="prompts") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(_prompt(json.loads(line), endpoint, output_tokens))
            except ValueError as error:
                message = f"--prompts {path}, line {number}: {error}; {PROMPT_FIELDS}"
                raise UsageError(message, param="prompts") from None
    if not found:
        raise UsageError(f"--prompts {path} has no prompts: {PROMPT_FIELDS}", param="prompts")
    return DatasetWorkload(path, tuple(found))


def _prompt(line: object, endpoint: Endpoint, output_tokens: int) -> LoadRequest:
    if not isinstance(line, dict):
        raise ValueError("not an object")
    row = cast("dict[str, Any]", line)
    prompt = row.get("prompt", row.get("messages", row.get("turns")))
    if "turns" in row and isinstance(prompt, list) and prompt:
        prompt = cast("list[object]", prompt)[0]
    most = row.get("max_tokens", output_tokens)
    if type(most) is not int or most < 1:
        raise ValueError(f"max_tokens is {most!r}, not a count")
    if isinstance(prompt, str) and prompt:
        return LoadRequest(prompt, most)
    if not isinstance(prompt, list) or not prompt:
        raise ValueError("there is no prompt")
    if endpoint == "completions":
        raise ValueError("messages need --endpoint chat")
    return LoadRequest(cast("list[dict[str, Any]]", prompt), most)
