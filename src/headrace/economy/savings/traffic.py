"""The recorded workload of the stacked bill: a file of requests, or ones made by a fixed generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace as changed

from headrace.economy.savings import texts
from headrace.errors import UsageError

SQL, LABEL = "sql", "label"
"""What the small model and the student can answer. All other kinds need the large model."""
REPEATED, SAMPLED = 0.25, 0.3  # shares of the generator: equal requests, and those without a fixed answer
KINDS = {"chat": 0.25, SQL: 0.35, LABEL: 0.25, "extraction": 0.15}


class RecordedRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request. `instruction` is what many share and stands before the `prompt`; `answer` is the right
    one, "" where there is no single one, and `output_tokens` its length then. A `sampled` one has no
    fixed answer, so that none is cached. `history` are requests before the traffic, with labels: they
    train the student and certify thresholds, and cost nothing here."""

    at_s: float
    kind: str
    prompt: str
    instruction: str = ""
    answer: str = ""
    output_tokens: int = 32
    sampled: bool = False
    history: bool = False


def read_traffic(path: Path) -> list[RecordedRequest]:
    """A file with a JSON object on each line. Raises UsageError with line and cause."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--workload {path} cannot be read: {error}", param="workload") from None
    found: list[RecordedRequest] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(msgspec.json.decode(line, type=RecordedRequest))
        except msgspec.MsgspecError as error:
            raise UsageError(f"--workload {path}, line {number}: {error}", param="workload") from None
    if not any(not one.history for one in found):
        raise UsageError(f"--workload {path} has no traffic: requests without `history`", param="workload")
    times = [one.at_s for one in found if not one.history]
    if times != sorted(times) or times[0] < 0:
        raise UsageError(f"--workload {path}: at_s must be 0 or more and ascend", param="workload")
    return found


def write_traffic(requests: Sequence[RecordedRequest], path: Path) -> None:
    """The file that `read_traffic` reads."""
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in requests))


def made_traffic(
    count: int, per_second: float, history: int, *, seed: int = 29, made: dict[str, Maker] | None = None
) -> list[RecordedRequest]:
    """A mix of chats, questions for SQL, texts to label and to extract from, at random times; and `history`
    labeled requests of each kind that has labels. `made` replaces makers of kinds."""
    random = np.random.default_rng(seed)
    makers = MAKERS | (made or {})
    found = [
        changed(makers[kind](random), at_s=0.0, history=True) for kind in (SQL, LABEL) for _ in range(history)
    ]
    past: dict[str, list[RecordedRequest]] = {kind: [] for kind in KINDS}
    at_s = 0.0
    for _ in range(count):
        at_s += float(random.exponential(1 / per_second))
        kind = str(random.choice(list(KINDS), p=list(KINDS.values())))
        if past[kind] and random.random() < REPEATED:
            one = past[kind][int(random.integers(len(past[kind])))]
        else:
            one = makers[kind](random)
            past[kind].append(one)
        found.append(changed(one, at_s=at_s))
    return found


Maker = Callable[[np.random.Generator], RecordedRequest]


def _chat(random: np.random.Generator) -> RecordedRequest:
    instruction, questions = texts.ASSISTANTS[int(random.integers(len(texts.ASSISTANTS)))]
    prompt = texts.filled(questions, random)
    return RecordedRequest(
        at_s=0.0,
        kind="chat",
        instruction=instruction,
        prompt=prompt,
        output_tokens=int(random.integers(16, 56)),
        sampled=bool(random.random() < SAMPLED),
    )


def _sql(random: np.random.Generator) -> RecordedRequest:
    prompt, answer = texts.sql_question(random)
    return RecordedRequest(
        at_s=0.0, kind=SQL, instruction=texts.SQL_INSTRUCTION, prompt=prompt, answer=answer
    )


def _label(random: np.random.Generator) -> RecordedRequest:
    label = str(random.choice(list(texts.INTENTS)))
    return RecordedRequest(
        at_s=0.0,
        kind=LABEL,
        instruction=texts.LABEL_INSTRUCTION,
        prompt=texts.filled(texts.INTENTS[label], random),
        answer=label,
    )


def _extraction(random: np.random.Generator) -> RecordedRequest:
    prompt, answer = texts.extraction(random)
    return RecordedRequest(
        at_s=0.0, kind="extraction", instruction=texts.EXTRACTION_INSTRUCTION, prompt=prompt, answer=answer
    )


MAKERS: dict[str, Maker] = {"chat": _chat, SQL: _sql, LABEL: _label, "extraction": _extraction}
