"""What makes recorded traffic cheaper, each as something that a run has or has not, and what a run costs.

`plan` decides what is left to compute where exactly some levers are on. `lever_cost` computes it in the
simulator; `savings/engine_run.py` gives the same plan to real engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace as changed
from numpy.typing import NDArray

from headrace.economy.replay import ReplayJob, StepSpeed, replay
from headrace.economy.shapley import Levers

LARGE, SMALL = "large", "small"
BATCHING, PREFIX, EXACT, NEAR = "batching", "prefix cache", "exact cache", "near drafts"
ROUTING, STUDENT, SPECULATION, HEDGING = "routing", "student", "speculation", "hedging"
QUANTIZATION, KV_QUANTIZATION, NOOP = "quantization", "KV quantization", "no-op"
LEVERS = (
    *(BATCHING, PREFIX, QUANTIZATION, KV_QUANTIZATION, EXACT, ROUTING, STUDENT),
    *(SPECULATION, NEAR, HEDGING, NOOP),
)
"""In the order in which the stacked bill switches them on."""
LOSSY = (QUANTIZATION, KV_QUANTIZATION, ROUTING, STUDENT)
"""Those that may change answers."""
PLANTED = "planted"
HOUR_S = 3600.0
HEDGED_SHARE = 0.05


class LeverCall(Struct, frozen=True, kw_only=True):
    """A recorded request with what is known of it.

    `prompt` and `output` are the tokens for the large model, `small_prompt` and `small_output` those for the
    small one, which was trained for its tasks and needs no instruction. `repeats` says that an equal
    deterministic request came before, `is_near` that one with nearly the same meaning did, whose answer can
    be the draft. `by_small` and `by_student` say that their score is above its certified threshold.
    """

    at_s: float
    kind: str
    prompt: tuple[int, ...]
    output: int
    small_prompt: tuple[int, ...] = ()
    small_output: int = 0
    repeats: bool = False
    is_near: bool = False
    by_small: bool = False
    by_student: bool = False

    def work(self, model: str) -> tuple[tuple[int, ...], int]:
        """The prompt and the tokens of the answer of a model."""
        return (self.prompt, self.output) if model == LARGE else (self.small_prompt, self.small_output)


class SpeedDraws(Struct, frozen=True, kw_only=True):
    """What other runs of the same calibration could have found: of each key of `LeverSpeeds.steps` the
    seconds [draws, 4] of a step, a token of a prompt, a row and a pair; of each key of `paces` the pace
    relative to the one found [draws]."""

    steps: Mapping[tuple[str, bool, bool], NDArray[np.float64]]
    paces: Mapping[tuple[bool, bool], NDArray[np.float64]]


class LeverSpeeds(Struct, frozen=True, kw_only=True):
    """What a machine was measured to need. `steps` are by (model, quantized, KV quantized); `paces` are the
    times per token of the small model with drafts, relative to those without, by (drafts of near answers,
    batching): speculation alone is (False, ...). `student_s` is a text that the student classifies, `near_s`
    the search of a near answer, `exact_s` an answer of the exact cache. `rows` is the most that batching
    has. `draws` say how uncertain all of it is."""

    steps: Mapping[tuple[str, bool, bool], StepSpeed]
    paces: Mapping[tuple[bool, bool], float]
    student_s: float
    near_s: float
    rows: int
    page_tokens: int
    exact_s: float = 0.0
    draws: SpeedDraws | None = None


class LeverPrices(Struct, frozen=True, kw_only=True):
    """Nano-dollars: of this machine per hour, and, where the large model is behind an API, per million tokens
    of the input, of input that its cache has, and of the output."""

    node_hour: int
    api: tuple[int, int, int] | None = None


class PlannedCall(Struct, frozen=True, kw_only=True):
    """What is left of a request: nothing where `model` is None. `other_s` is time beside the models."""

    call: int
    model: str | None
    cached: int = 0
    drafts: bool = False
    near: bool = False
    other_s: float = 0.0


class LeverRun(Struct, frozen=True):
    """What the traffic cost: `nano_usd` exactly, `by_call` as shares of it; and the time of the machine.
    `first_s` is of the requests that a model here computed. `draws` are the costs [draws] by the draws of the
    speeds, with the same work in the same steps."""

    nano_usd: int
    by_call: NDArray[np.float64]
    busy_s: float
    first_s: NDArray[np.float64]
    draws: NDArray[np.float64]


def plan(calls: Sequence[LeverCall], levers: Levers, speeds: LeverSpeeds) -> list[PlannedCall]:
    """What each request needs with these levers."""
    pages: dict[str, set[int]] = {LARGE: set(), SMALL: set()}
    planned: list[PlannedCall] = []
    for index, call in enumerate(calls):
        if EXACT in levers and call.repeats:
            planned.append(PlannedCall(call=index, model=None, other_s=speeds.exact_s))
            continue
        if STUDENT in levers and call.by_student:
            planned.append(PlannedCall(call=index, model=None, other_s=speeds.student_s))
            continue
        model = SMALL if ROUTING in levers and call.by_small else LARGE
        near = NEAR in levers and SPECULATION in levers and model == SMALL
        planned.append(
            PlannedCall(
                call=index,
                model=model,
                cached=_cached(call.work(model)[0], pages[model], speeds.page_tokens)
                if PREFIX in levers
                else 0,
                drafts=SPECULATION in levers and model == SMALL,
                near=near and call.is_near,
                other_s=speeds.near_s if near else 0.0,
            )
        )
    return planned


def _cached(prompt: Sequence[int], seen: set[int], page_tokens: int) -> int:
    """Tokens of whole pages that an earlier prompt began with; remembers this one's."""
    found, key, open_ = 0, 0, True
    for start, end in pairwise(range(0, len(prompt), page_tokens)):
        key = hash((key, tuple(prompt[start:end])))
        open_ = open_ and key in seen
        found = end if open_ else found
        seen.add(key)
    return found


def lever_cost(
    calls: Sequence[LeverCall], levers: Levers, speeds: LeverSpeeds, prices: LeverPrices
) -> LeverRun:
    """What the traffic costs in the simulator with exactly these levers."""
    planned = plan(calls, levers, speeds)
    batching = BATCHING in levers
    remote = {one.call for one in planned if one.model == LARGE and prices.api is not None}
    local = [one for one in planned if one.model is not None and one.call not in remote]
    lanes = {name: _speed(speeds, name, levers) for name in (LARGE, SMALL)}
    jobs = [
        _job(calls[one.call], one, speeds.paces[one.near, batching] if one.drafts else 1.0) for one in local
    ]
    done = replay(jobs, lanes)
    seconds = np.array([one.other_s for one in planned])
    seconds[[one.call for one in local]] += done.share_s
    first_s = done.first_s
    if HEDGING in levers and len(jobs):
        hedged_s, first_s = _hedged(jobs, done.first_s, lanes)
        seconds[[one.call for one in local]] += hedged_s
    by_call = seconds * (prices.node_hour / HOUR_S)
    for one in planned:
        if one.call in remote and prices.api is not None:
            by_call[one.call] += _api_nano(calls[one.call], one.cached, prices.api)
    drawn_s = _drawn_s(levers, done.work, lanes, speeds)
    return LeverRun(
        nano_usd=round(float(by_call.sum())),
        by_call=by_call,
        busy_s=float(seconds.sum()),
        first_s=first_s,
        draws=by_call.sum() + drawn_s * (prices.node_hour / HOUR_S),
    )


def _drawn_s(
    levers: Levers,
    work: Mapping[str, NDArray[np.float64]],
    lanes: Mapping[str, StepSpeed],
    speeds: LeverSpeeds,
) -> NDArray[np.float64]:
    """Seconds [draws] more than with the speeds that were found. Where drafts are tried all steps of the
    small model but for its prompts take their pace; that of near answers counts as uncertain as the other."""
    if speeds.draws is None:
        return np.zeros(0)
    total_s = np.zeros(())
    for model, amounts in work.items():
        drawn = speeds.draws.steps[model, QUANTIZATION in levers, KV_QUANTIZATION in levers]
        found_s = float(np.dot(amounts, lanes[model].coefficients))
        if SPECULATION in levers and model == SMALL:
            pace = speeds.draws.paces[False, BATCHING in levers][:, None]
            drawn = np.hstack([drawn[:, :1] * pace, drawn[:, 1:2], drawn[:, 2:] * pace])
        total_s = total_s + drawn @ amounts - found_s
    return total_s


def _job(call: LeverCall, planned: PlannedCall, pace: float) -> ReplayJob:
    model = str(planned.model)
    prompt, output = call.work(model)
    return ReplayJob(
        at_s=call.at_s, model=model, prompt=len(prompt), output=output, cached=planned.cached, pace=pace
    )


def _speed(speeds: LeverSpeeds, model: str, levers: Levers) -> StepSpeed:
    found = speeds.steps[model, QUANTIZATION in levers, KV_QUANTIZATION in levers]
    return changed(found, max_rows=speeds.rows if BATCHING in levers else 1)


def _hedged(
    jobs: Sequence[ReplayJob], first_s: NDArray[np.float64], lanes: Mapping[str, StepSpeed]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds of a second, idle machine that computes what has no first token at the 95th percentile, until
    the first of both has one; and the times to the first token with that."""
    delay_s = float(np.quantile(first_s, 1 - HEDGED_SHARE, method="higher"))
    alone_s = np.array([lanes[job.model].step_s(job.prompt, 0, job.prompt**2 / 2) for job in jobs])
    late = first_s > delay_s
    sooner = np.minimum(first_s, delay_s + alone_s)
    return np.where(late, sooner - delay_s, 0.0), np.where(late, sooner, first_s)


def _api_nano(call: LeverCall, cached: int, rates: tuple[int, int, int]) -> float:
    fresh, kept, output = rates
    return ((len(call.prompt) - cached) * fresh + cached * kept + call.output * output) / 1e6


Runs = Callable[[Levers], LeverRun]


class LeverGame:
    """Costs of sets of levers, each simulated once. Sets that cannot differ are one: the no-op is in none of
    them, and drafts of near answers need speculation.

    `planted_share` adds a lever that burns such a part of the cost without levers, whatever else is on: what
    the values say of it is known beforehand.
    """

    def __init__(self, runs: Runs, planted_share: float = 0.0) -> None:
        self._runs, self._planted = runs, planted_share
        self._known: dict[Levers, LeverRun] = {}

    def beside(self, given: Levers) -> LeverGame:
        """The same game where some levers are always on: without further ones it costs what it costs with
        those."""
        return LeverGame(lambda levers: self.run(levers | given), self._planted)

    @property
    def simulated(self) -> int:
        """Runs so far."""
        return len(self._known)

    def run(self, levers: Levers) -> LeverRun:
        """With exactly these levers."""
        if PLANTED in levers:
            rest, base = self.run(levers - {PLANTED}), self.run(frozenset())
            burnt = base.by_call * self._planted
            return changed(
                rest,
                nano_usd=rest.nano_usd + round(base.nano_usd * self._planted),
                by_call=rest.by_call + burnt,
                draws=rest.draws + base.draws * self._planted,
            )
        key = levers - {NOOP}
        if SPECULATION not in key:
            key -= {NEAR}
        if key not in self._known:
            self._known[key] = self._runs(key)
        return self._known[key]

    def cost(self, levers: Levers) -> int:
        """Nano-dollars."""
        return self.run(levers).nano_usd
