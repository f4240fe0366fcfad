"""The stacked bill from recorded requests: outcomes and speeds are measured, then all sets of levers are
simulated, and on request each lever of the stack is run by real engines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from msgspec import Struct

from headrace.economy.lever_bill import LeverBill, LeverQuality, lever_bill, without
from headrace.economy.levers import (
    BATCHING,
    KV_QUANTIZATION,
    LARGE,
    LEVERS,
    PLANTED,
    PREFIX,
    QUANTIZATION,
    ROUTING,
    SMALL,
    STUDENT,
    LeverCall,
    LeverGame,
    LeverPrices,
    LeverSpeeds,
    SpeedDraws,
    lever_cost,
)
from headrace.economy.savings.calibration import (
    Format,
    Rounds,
    drawn_paces,
    measured_embedding_s,
    measured_paces,
    measured_rounds,
)
from headrace.economy.savings.engine_run import EngineReplay, StackRun
from headrace.economy.savings.models import ROWS, load_encoder, load_large, load_small, options_of
from headrace.economy.savings.outcomes import (
    Certified,
    Certify,
    Judged,
    answer_all,
    is_right,
    judged_small,
    judged_student,
    lever_calls,
    near_answers,
)
from headrace.economy.savings.traffic import SQL, RecordedRequest
from headrace.engine.client import LoadedModel
from headrace.kv.pages import PAGE_TOKENS
from headrace.loading.options import EngineOptions

PACED = 32  # requests by which drafts are measured
FORMATS = ((False, False), (True, False), (False, True), (True, True))  # weights and KV quantized
USUAL = frozenset({BATCHING, PREFIX})
"""What every server does."""
EXACT_S = 0.004  # an answer of the response cache: bench/results/response-cache.md
COMPARED = 400  # answers that formats are compared by
UpperBound = Callable[[int, int], float]
"""The 95 % bound of a rate of which so many of so many were seen."""
Progress = Callable[[str], None]


class StudyOrder(Struct, frozen=True, kw_only=True):
    """`config` is the shape of the large model, None the built-in one; `planted` the part that a planted
    lever burns, 0: there is none. `risk` is what may be wrong of the answers of cheap models. `repeats` are
    rounds of the calibration. Engines run the first `engine_requests`."""

    requests: Sequence[RecordedRequest]
    prices: LeverPrices
    config: Path | None = None
    planted: float = 0.0
    risk: float = 0.05
    repeats: int = 5
    engine_requests: int = 60


class SavingsStudy(Struct, frozen=True, kw_only=True):
    """What came out. `usual` is the bill of the other levers against the large model with batching and the
    prefix cache, as servers have them anyway. `answered_small` and `answered_student` are
    shares of the traffic."""

    bill: LeverBill
    usual: LeverBill
    engine: tuple[StackRun, ...]
    kinds: Mapping[str, int]
    repeated: int
    answered_small: float
    answered_student: float
    first_token_s: tuple[float, float]
    seconds: Mapping[str, tuple[float, float]]


class Measured(Struct, frozen=True, kw_only=True):
    """What the simulator needs, and near answers for the engine."""

    calls: tuple[LeverCall, ...]
    near: Mapping[int, tuple[int, ...]]
    speeds: LeverSpeeds
    qualities: Mapping[str, LeverQuality]


def study(
    order: StudyOrder,
    options: EngineOptions,
    certify: Certify,
    upper: UpperBound,
    *,
    engine: bool,
    progress: Progress = lambda text: None,
) -> SavingsStudy:
    """Measure, simulate, and with `engine` run the stack. Raises the errors of loading."""
    found = measured(order, options, certify, upper, progress)
    progress("simulating")
    game = LeverGame(
        lambda levers: lever_cost(found.calls, levers, found.speeds, order.prices), order.planted
    )
    names = (*LEVERS, PLANTED) if order.planted else LEVERS
    bill = lever_bill(names, game, found.qualities)
    runs: list[StackRun] = []
    if engine:
        replay = EngineReplay(
            found.calls[: order.engine_requests],
            found.near,
            found.speeds,
            order.prices,
            options,
            order.config,
        )
        stack = without(LEVERS, frozenset({"hedging"}))
        for count in range(len(stack) + 1):
            added = stack[count - 1] if count else "none"
            progress(f"engine with {count} levers: {added}")
            runs.append(replay.run(added, frozenset(stack[:count])))
    first, last = game.run(frozenset()), game.run(frozenset(LEVERS))
    return SavingsStudy(
        bill=bill,
        usual=lever_bill([name for name in names if name not in USUAL], game.beside(USUAL), found.qualities),
        engine=tuple(runs),
        kinds=_counts([one.kind for one in found.calls]),
        repeated=sum(one.repeats for one in found.calls),
        answered_small=sum(one.by_small for one in found.calls) / len(found.calls),
        answered_student=sum(one.by_student for one in found.calls) / len(found.calls),
        first_token_s=(_p95(first.first_s.tolist()), _p95(last.first_s.tolist())),
        seconds=_token_seconds(found.speeds),
    )


def measured(
    order: StudyOrder, options: EngineOptions, certify: Certify, upper: UpperBound, progress: Progress
) -> Measured:
    """Outcomes of the small model and the student, and the speeds of all models."""
    history = [one for one in order.requests if one.history]
    traffic = [one for one in order.requests if not one.history]
    with ExitStack() as stack:
        progress("answers of the small model")
        small = stack.enter_context(closing(load_small(options_of(options))))
        judged, answers = judged_small(small, history, traffic)
        progress("labels of the student")
        encoder = stack.enter_context(closing(load_encoder(options)))
        student = judged_student(encoder, history, traffic)
        near = near_answers(encoder, traffic, answers)
        certified = judged.certified(certify), student.certified(certify)
        by_small, by_student = judged.answered(certified[0]), student.answered(certified[1])
        small_places = {judged.places[index] for index in by_small}
        student_places = {student.places[index] for index in by_student}
        calls = lever_calls(small, traffic, answers, near, small_places, student_places)
        qualities = {
            ROUTING: _quality("answers of the small model", judged, by_small, certified[0], order.risk),
            STUDENT: _quality("labels of the student", student, by_student, certified[1], order.risk),
        }
        progress("drafts")
        drafting = stack.enter_context(closing(load_small(options_of(options, drafts=True))))
        some = sorted(answers)[:PACED]
        paces = measured_paces(
            small,
            drafting,
            [calls[place].small_prompt for place in some],
            [near[place] for place in some],
            order.repeats,
        )
        embedding_s = measured_embedding_s(encoder, [one.prompt for one in traffic[:PACED]])
        asked = [one for one in [*traffic, *history] if one.kind == SQL][:COMPARED]
        rounds, formats = _formats(order, options, small, asked, upper, progress)
    speeds = LeverSpeeds(
        steps={name: rounds.speed(name, ROWS) for name in rounds.samples},
        paces={name: statistics.median(ratios) for name, ratios in paces.items()},
        draws=SpeedDraws(steps=rounds.draws(), paces=drawn_paces(paces)),
        exact_s=EXACT_S,
        student_s=embedding_s,
        near_s=embedding_s,
        rows=ROWS,
        page_tokens=PAGE_TOKENS,
    )
    return Measured(calls=tuple(calls), near=near, speeds=speeds, qualities=qualities | formats)


def _quality(
    measure: str, judged: Judged, answered: Sequence[int], certified: Certified | None, bound: float
) -> LeverQuality:
    """Wrong answers to new requests of the traffic are counted, and the bound is that of the labels of the
    history."""
    answered = [index for index in answered if judged.is_new[index]]
    by = "" if certified is None else f", certified by {certified.answered:,} of {certified.labeled:,} labels"
    worse = sum(judged.wrong[index] for index in answered)
    return LeverQuality(
        measure=f"{measure} that are wrong{by}",
        count=len(answered),
        worse=worse,
        upper=certified.upper if certified else 0.0,
        bound=bound,
    )


def _formats(
    order: StudyOrder,
    options: EngineOptions,
    plain: LoadedModel,
    asked: Sequence[RecordedRequest],
    upper: UpperBound,
    progress: Progress,
) -> tuple[Rounds, dict[str, LeverQuality]]:
    """Speeds of both models in all formats, and what the formats do to the small one's answers."""
    with ExitStack() as stack:
        models: dict[Format, LoadedModel] = {}
        for quantized, kv in FORMATS:
            own = options_of(options, quantized=quantized, kv=kv)
            models[SMALL, quantized, kv] = stack.enter_context(closing(load_small(own)))
            models[LARGE, quantized, kv] = stack.enter_context(closing(load_large(order.config, own, plain)))
        progress("speeds")
        rounds = measured_rounds(models, order.repeats)
        progress("answers in all formats")
        answers = {name: answer_all(models[SMALL, *name], asked) for name in FORMATS[:3]}

    def lost(format_: tuple[bool, bool]) -> LeverQuality:
        worse = sum(
            is_right(request, before.text) and not is_right(request, after.text)
            for request, before, after in zip(asked, answers[False, False], answers[format_], strict=True)
        )
        return LeverQuality(
            measure="right answers of the small model that become wrong",
            count=len(asked),
            worse=worse,
            upper=upper(worse, len(asked)) if asked else 0.0,
            bound=order.risk,
        )

    return rounds, {QUANTIZATION: lost((True, False)), KV_QUANTIZATION: lost((False, True))}


def _token_seconds(speeds: LeverSpeeds) -> dict[str, tuple[float, float]]:
    """Of each model and format the seconds of 256 tokens of a prompt and of a token alone."""
    return {
        f"{model} {'int8' if quantized else 'bf16'}": (
            one.step_s(256, 0, 256 * 257 / 2),
            one.step_s(0, 1, 256),
        )
        for (model, quantized, kv), one in speeds.steps.items()
        if not kv
    }


def _counts(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in dict.fromkeys(names)}


def _p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return float(ordered[int(0.95 * (len(ordered) - 1))]) if ordered else 0.0
