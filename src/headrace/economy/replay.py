"""Recorded traffic on a simulated machine: continuous batching of several models that take turns.

Steps of a model take what the engine's own fit says: a + b * prefill + c * rows + d * pairs. While a prompt
is read each step is an event of its own; where all rows generate, the steps until the next arrival or the
next end of an answer are one event, in closed form. So the work grows with the requests, not with their
tokens.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.engine.step_times import attended


class StepSpeed(Struct, frozen=True, kw_only=True):
    """Seconds of a step of one model, the rows that it can have, and the tokens of prompts in a step."""

    base_s: float
    per_prompt_token_s: float
    per_row_s: float
    per_pair_s: float
    max_rows: int
    chunk_tokens: int = 512

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """Seconds of a step, a token of a prompt, a row and a pair."""
        return self.base_s, self.per_prompt_token_s, self.per_row_s, self.per_pair_s

    def step_s(self, prefill: float, rows: float, pairs: float) -> float:
        """Seconds of a step."""
        return (
            self.base_s + self.per_prompt_token_s * prefill + self.per_row_s * rows + self.per_pair_s * pairs
        )


class ReplayJob(Struct, frozen=True, kw_only=True):
    """One request: which model computes it, the tokens of its prompt, of which `cached` need no computing,
    and the tokens of its answer. `pace` is the time per token relative to a step with one token: below 1
    where drafts are accepted."""

    at_s: float
    model: str
    prompt: int
    output: int
    cached: int = 0
    pace: float = 1.0


class Replayed(Struct, frozen=True):
    """Of each job: seconds to the first token, until its end, and its share of the machine's time, which at
    every moment is divided equally among the jobs that have arrived and not ended. The shares sum to
    `busy_s`. `work` is what each model computed in sum, [steps, tokens of prompts, rows, pairs]: times its
    speed it is the seconds of that model."""

    first_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    share_s: NDArray[np.float64]
    busy_s: float
    work: Mapping[str, NDArray[np.float64]]


def replay(jobs: Sequence[ReplayJob], speeds: Mapping[str, StepSpeed]) -> Replayed:
    """Serve jobs, in the order of their arrival."""
    run = _Replay(jobs, speeds)
    while run.advance():
        pass
    at_s = np.array([job.at_s for job in jobs])
    return Replayed(run.first_s - at_s, run.done_s - at_s, run.share_s, run.busy_s, run.work)


class _Lane:
    """One model: prompts that wait, and rows that generate. `made` counts steps; a row ends at a count."""

    def __init__(self, speed: StepSpeed) -> None:
        self.speed = speed
        self.waiting: deque[tuple[int, int, int, float]] = deque()  # job, position, prompt, steps after it
        self.rows: list[tuple[float, int, int, float]] = []  # count at its end, job, prompt, steps
        self.made, self.pairs = 0.0, 0.0
        self.work = np.zeros(4)

    @property
    def reads(self) -> bool:
        return bool(self.waiting) and len(self.rows) < self.speed.max_rows

    @property
    def works(self) -> bool:
        return bool(self.rows) or bool(self.waiting)

    def read(self) -> tuple[float, list[tuple[int, int, float]]]:
        """A step that reads prompts: its seconds, and the jobs whose prompt is complete with it."""
        left, tokens, pairs = self.speed.chunk_tokens, 0, 0.0
        complete: list[tuple[int, int, float]] = []
        while self.waiting and left and len(self.rows) + len(complete) < self.speed.max_rows:
            job, position, prompt, steps = self.waiting[0]
            count = min(left, prompt - position)
            left, tokens, pairs = left - count, tokens + count, pairs + attended(position, count)
            if position + count < prompt:
                self.waiting[0] = (job, position + count, prompt, steps)
                break
            self.waiting.popleft()
            complete.append((job, prompt, steps))
        seconds = self.speed.step_s(tokens, len(self.rows), self.pairs + pairs)
        self.work += (1.0, tokens, len(self.rows), self.pairs + pairs)
        self.grow(1.0)
        return seconds, complete

    def generate(self, steps: float) -> None:
        """Steps in which all rows generate."""
        rows, growth = len(self.rows), max(0.0, steps - 1) / 2
        self.work += (steps, 0.0, steps * rows, steps * (self.pairs + growth * rows))
        self.grow(steps)

    def begin(self, job: int, prompt: int, steps: float) -> None:
        """A prompt was read: its row generates."""
        heapq.heappush(self.rows, (self.made + steps, job, prompt, steps))
        self.pairs += prompt + 1

    def grow(self, steps: float) -> None:
        """Every row has made a token more in each step."""
        self.made += steps
        self.pairs += steps * len(self.rows)

    def ended(self) -> list[int]:
        """The jobs whose rows have made all tokens."""
        found: list[int] = []
        while self.rows and self.rows[0][0] <= self.made + 1e-9:
            end, job, prompt, steps = heapq.heappop(self.rows)
            self.pairs -= prompt + 1 + steps + (self.made - end)
            found.append(job)
        if not self.rows:
            self.pairs = 0.0
        return found


class _Replay:
    """The state of the machine. `spread_s` is the integral of time over the number of jobs present."""

    def __init__(self, jobs: Sequence[ReplayJob], speeds: Mapping[str, StepSpeed]) -> None:
        self._jobs = jobs
        self._lanes = {name: _Lane(speed) for name, speed in speeds.items()}
        self._next, self._now_s, self._present, self._spread_s = 0, 0.0, 0, 0.0
        self._begun_s = np.zeros(len(jobs))
        self.first_s, self.done_s = np.zeros(len(jobs)), np.zeros(len(jobs))
        self.share_s = np.zeros(len(jobs))
        self.busy_s = 0.0

    @property
    def work(self) -> dict[str, NDArray[np.float64]]:
        """What each model computed."""
        return {name: lane.work for name, lane in self._lanes.items()}

    def advance(self) -> bool:
        """To the next event; False where there is none."""
        self._arrive()
        lanes = [lane for lane in self._lanes.values() if lane.works]
        if not lanes:
            if self._next == len(self._jobs):
                return False
            self._now_s = self._jobs[self._next].at_s
            return True
        if any(lane.reads for lane in lanes):
            self._read(lanes)
        else:
            self._generate(lanes)
        for lane in lanes:
            for job in lane.ended():
                self._end(job)
        return True

    def _arrive(self) -> None:
        while self._next < len(self._jobs) and self._jobs[self._next].at_s <= self._now_s:
            job = self._jobs[self._next]
            cached = min(job.cached, job.prompt - 1)
            steps = max(0.0, (job.output - 1) * job.pace)
            self._lanes[job.model].waiting.append((self._next, cached, job.prompt, steps))
            self._begun_s[self._next] = self._spread_s
            self._present += 1
            self._next += 1

    def _read(self, lanes: Sequence[_Lane]) -> None:
        """One step of each model, some of which read."""
        total_s = 0.0
        complete: list[tuple[_Lane, int, int, float]] = []
        for lane in lanes:
            seconds, found = lane.read()
            total_s += seconds
            complete += [(lane, *one) for one in found]
        self._pass(total_s)
        for lane, job, prompt, steps in complete:
            self.first_s[job] = self._now_s
            lane.begin(job, prompt, steps)

    def _generate(self, lanes: Sequence[_Lane]) -> None:
        """All steps until an answer ends or a request arrives: their times are an arithmetic series."""
        first_s = sum(lane.speed.step_s(0, len(lane.rows), lane.pairs) for lane in lanes)
        growth_s = sum(lane.speed.per_pair_s * len(lane.rows) for lane in lanes)
        steps = min(lane.rows[0][0] - lane.made for lane in lanes)
        if self._next < len(self._jobs):
            wait_s = self._jobs[self._next].at_s - self._now_s
            steps = min(steps, max(1.0, math.ceil(_steps_in(wait_s, first_s, growth_s))))
        steps = max(steps, 1e-9)
        self._pass(steps * first_s + growth_s * steps * max(0.0, steps - 1) / 2)
        for lane in lanes:
            lane.generate(steps)

    def _pass(self, seconds: float) -> None:
        self._now_s += seconds
        self.busy_s += seconds
        self._spread_s += seconds / self._present

    def _end(self, job: int) -> None:
        self.done_s[job] = self._now_s
        self.share_s[job] = self._spread_s - self._begun_s[job]
        self._present -= 1


def _steps_in(wait_s: float, first_s: float, growth_s: float) -> float:
    """How many steps take `wait_s`, of which the first takes `first_s` and each next one more."""
    if growth_s <= 0:
        return wait_s / first_s
    linear = first_s - growth_s / 2
    return 2 * wait_s / (linear + math.sqrt(linear * linear + 2 * growth_s * wait_s))
