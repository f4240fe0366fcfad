"""Answers of models to prompts, as tokens or as lines of a file that grows."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from headrace.engine.client import LoadedModel
from headrace.engine.request import (
    ChoiceFinished,
    Delta,
    EngineEvent,
    EngineRequest,
    RequestFailed,
    RequestFinished,
)
from headrace.engine.turns import BATCH_PRIORITY
from headrace.sampling.params import SamplingParams

AT_ONCE = 256
Progress = Callable[[int, int], None]


class TeacherAnswer(Struct, frozen=True):
    """Tokens without that which ended them; whether one did."""

    tokens: tuple[int, ...]
    ended: bool


def answers_of(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> list[TeacherAnswer]:
    """A model's answers to prompts of token ids, computed together in the class of batches. The seed of a
    prompt is `seed` plus its place: an answer does not depend on which others are asked for."""
    found: list[TeacherAnswer] = []
    for start in range(0, len(prompts), AT_ONCE):
        progress(start, len(prompts))
        requests = [
            EngineRequest(
                prompt=tuple(int(token) for token in prompt),
                params=SamplingParams(
                    temperature=temperature, max_tokens=max_tokens, seed=seed + start + index
                ),
                priority=BATCH_PRIORITY,
                is_continuation=True,
            )
            for index, prompt in enumerate(prompts[start : start + AT_ONCE])
        ]
        found += _together(loaded, requests)
    progress(len(prompts), len(prompts))
    return found


def _together(loaded: LoadedModel, requests: Sequence[EngineRequest]) -> list[TeacherAnswer]:
    arrived: queue.SimpleQueue[tuple[int, list[EngineEvent]]] = queue.SimpleQueue()
    for index, request in enumerate(requests):

        def sink(events: list[EngineEvent], index: int = index) -> None:
            arrived.put((index, events))

        loaded.engine.submit(request, sink)
    tokens: list[list[int]] = [[] for _ in requests]
    ended = [False] * len(requests)
    left = len(requests)
    while left:
        index, events = arrived.get()
        for event in events:
            if isinstance(event, RequestFailed):
                raise event.error
            if isinstance(event, Delta):
                tokens[index] += event.tokens
            elif isinstance(event, ChoiceFinished):
                ended[index] = event.reason == "stop"
            left -= isinstance(event, RequestFinished)
    return [TeacherAnswer(tuple(one), end) for one, end in zip(tokens, ended, strict=True)]


def recorded(
    file: Path,
    count: int,
    make: Callable[[range], list[str]],
    progress: Progress = lambda done, total: None,
    *,
    at_once: int = AT_ONCE,
) -> list[str]:
    """`count` lines: those that the file has, and new ones by `make`, which are added to it part by part, so
    that a run that was killed goes on. A last line that was not written whole is made again."""
    lines: list[str] = []
    if file.is_file():
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        if text and not text.endswith("\n"):
            lines.pop()
            _rewrite(file, lines)
    with file.open("a", encoding="utf-8") as out:
        for first in range(len(lines), count, at_once):
            new = make(range(first, min(first + at_once, count)))
            out.write("".join(f"{line}\n" for line in new))
            out.flush()
            os.fsync(out.fileno())
            lines += new
            progress(len(lines), count)
    return lines[:count]


def _rewrite(file: Path, lines: Sequence[str]) -> None:
    part = file.with_suffix(".part")
    part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    part.replace(file)
