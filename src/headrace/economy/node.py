"""A simulated machine that serves a trace: continuous batching with chunked prefill, in closed form between
events.

A step takes `base + per_prompt_token * chunk + per_row * rows` seconds, as the engine's own fit of its
steps does. Between an arrival, the end of a prompt and the end of an answer nothing of that changes, so
each of these events costs a logarithm, not a loop over steps.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import UsageError

Times = NDArray[np.float64]
Counts = NDArray[np.int64]


class NodeSpeed(Struct, frozen=True, kw_only=True):
    """Seconds of a step, the rows that it can have, and the tokens of a prompt that it reads at most."""

    base_s: float
    per_row_s: float
    per_prompt_token_s: float
    max_rows: int
    chunk_tokens: int = 512

    def step_s(self, rows: int, prompt_tokens: int) -> float:
        """Seconds of a step."""
        return self.base_s + self.per_row_s * rows + self.per_prompt_token_s * prompt_tokens


def node_speed(
    *, prefill_tps: float, decode_tps: float, single_tps: float, max_rows: int, chunk_tokens: int = 512
) -> NodeSpeed:
    """A node by what benchmarks measure: tokens per second of prompts, of `max_rows` answers at a time in
    sum, and of one answer alone. Raises UsageError where the three contradict each other."""
    alone_s, full_s = 1 / single_tps, max_rows / decode_tps
    if max_rows > 1 and full_s < alone_s:
        raise UsageError(
            f"{max_rows} answers of {decode_tps:g} tokens/s in sum are faster each than one alone with "
            f"{single_tps:g}: --decode-tps is the sum, --single-tps one answer"
        )
    per_row_s = (full_s - alone_s) / max(1, max_rows - 1)
    base_s = alone_s - per_row_s
    per_token_s = 1 / prefill_tps - base_s / chunk_tokens
    if base_s < 0 or per_token_s < 0:
        raise UsageError(
            f"a step of one row takes {1000 * alone_s:.1f} ms and a chunk of {chunk_tokens} tokens "
            f"{1000 * chunk_tokens / prefill_tps:.1f} ms: these speeds contradict each other"
        )
    return NodeSpeed(
        base_s=base_s,
        per_row_s=per_row_s,
        per_prompt_token_s=per_token_s,
        max_rows=max_rows,
        chunk_tokens=chunk_tokens,
    )


class Served(Struct, frozen=True):
    """Of each request: seconds to its first token, and per token after that. `busy_s` is the time with
    work."""

    ttft_s: Times
    tpot_s: Times
    busy_s: float


def serve(speed: NodeSpeed, at_s: Times, prompts: Counts, outputs: Counts) -> Served:
    """Serve requests in the order of their arrival, `at_s` ascending; prompts one after the other."""
    run = _Run(speed, at_s, prompts, outputs)
    while run.advance():
        pass
    return Served(run.first_s - at_s, (run.done_s - run.first_s) / np.maximum(1, outputs - 1), run.busy_s)


class _Run:
    """The state of a node. `made` is how many tokens a row that was always there would have; an answer ends
    when that has grown by its length."""

    def __init__(self, speed: NodeSpeed, at_s: Times, prompts: Counts, outputs: Counts) -> None:
        self._speed = speed
        self._at: Sequence[float] = at_s.tolist()
        self._prompts: Sequence[int] = prompts.tolist()
        self._outputs: Sequence[int] = outputs.tolist()
        self._next, self._now_s, self._made = 0, 0.0, 0.0
        self._queue: deque[int] = deque()
        self._left = 0.0  # tokens of the prompt that is read
        self._rows: list[tuple[float, int]] = []
        self.first_s, self.done_s = np.zeros(len(at_s)), np.zeros(len(at_s))
        self.busy_s = 0.0

    def advance(self) -> bool:
        """To the next event; False where there is none."""
        reading = bool(self._queue) and len(self._rows) < self._speed.max_rows
        step_s = self._speed.step_s(len(self._rows), self._speed.chunk_tokens if reading else 0)
        waits = [
            self._at[self._next] - self._now_s if self._next < len(self._at) else np.inf,
            (self._rows[0][0] - self._made) * step_s if self._rows else np.inf,
            self._left * step_s / self._speed.chunk_tokens if reading else np.inf,
        ]
        event = min(range(3), key=waits.__getitem__)
        wait_s = max(0.0, waits[event])
        if wait_s == np.inf:
            return False
        self._pass(wait_s, step_s, reading)
        (self._arrive, self._finish, self._begin)[event]()
        return True

    def _pass(self, wait_s: float, step_s: float, reading: bool) -> None:
        self._now_s += wait_s
        if self._rows:
            self._made += wait_s / step_s
        if reading:
            self._left -= wait_s / step_s * self._speed.chunk_tokens
        if self._rows or reading:
            self.busy_s += wait_s

    def _arrive(self) -> None:
        self._queue.append(self._next)
        if len(self._queue) == 1:
            self._left = float(self._prompts[self._next])
        self._next += 1

    def _begin(self) -> None:
        """A prompt was read: its first token is there."""
        one = self._queue.popleft()
        self.first_s[one] = self._now_s
        if self._outputs[one] > 1:
            heapq.heappush(self._rows, (self._made + self._outputs[one] - 1, one))
        else:
            self.done_s[one] = self._now_s
        self._left = float(self._prompts[self._queue[0]]) if self._queue else 0.0

    def _finish(self) -> None:
        target, one = heapq.heappop(self._rows)
        self._made = target  # not what rounding left
        self.done_s[one] = self._now_s
