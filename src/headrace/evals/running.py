"""Runs a suite: models answer its cases, the evaluator scores them, two models are compared case by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from headrace.errors import HeadraceError, InvalidRequest
from headrace.evals.evaluators import checks, plain
from headrace.evals.intervals import Interval, PairedDifference, compared, corrected, mean_interval
from headrace.evals.judging import PREFERS, Verdicts, as_good
from headrace.evals.suite import Case, Consistency, Judge, Suite

SHOWN = 20
"""Cases that a report shows of each model."""
SHOWN_CHARACTERS = 400


class AnswerSource(Protocol):
    """A model. Raises HeadraceError where a request fails."""

    def answer(
        self,
        system: str,
        prompt: str,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        choices: Sequence[str] = (),
    ) -> str:
        """What it says; one of `choices`, where there are any and it can be held to them."""
        ...


class FailedCase(Struct, frozen=True):
    """A case that is not right: what was said, and what is wrong with it."""

    case: str
    answer: str
    problem: str


class JudgeRecord(Struct, frozen=True, kw_only=True):
    """What a judge was like: questions, verdicts that could not be read, pairs of which it preferred a place,
    and labels that correct it."""

    model: str
    asked: int
    unreadable: int
    swayed: int
    labels: int


class ModelScore(Struct, frozen=True, kw_only=True):
    """A model's score over the cases that could be scored. `errors` are cases that the model or the judge did
    not answer: they are in no mean. `corrected` is the judge's mean after its labels."""

    model: str
    scored: int
    errors: int
    score: Interval | None
    corrected: Interval | None
    judge: JudgeRecord | None
    failed: list[FailedCase]
    passed: bool | None


class SuiteReport(Struct, frozen=True, kw_only=True):
    """A suite that was run. `comparison` is of the second model with the first."""

    suite: str
    evaluator: str
    cases: int
    models: list[ModelScore]
    comparison: PairedDifference | None


Shown = Callable[[int, int], None]


class _Scores(Struct):
    scores: dict[int, float]
    failed: list[FailedCase]
    errors: int = 0
    judge: JudgeRecord | None = None
    labels: list[tuple[float, float]] = []


def run_suite(
    suite: Suite,
    models: Sequence[tuple[str, Callable[[], AnswerSource]]],
    judge: Callable[[], AnswerSource] | None = None,
    shown: Shown = lambda done, total: None,
) -> SuiteReport:
    """Run it for one or two models, each opened when it is its turn. Raises InvalidRequest where the suite
    cannot be scored."""
    if not 1 <= len(models) <= 2:
        raise InvalidRequest(f"{len(models)} models are named: name one, or two to compare", param="model")
    found: list[tuple[str, _Scores]] = []
    for number, (name, opened) in enumerate(models):
        done = number * len(suite.cases)

        def told(count: int, done: int = done) -> None:
            shown(done + count, len(models) * len(suite.cases))

        found.append((name, _scored(suite, opened(), judge, told)))
    comparison = None
    if len(found) == 2:
        first, second = (one.scores for _, one in found)
        both = sorted(first.keys() & second.keys())
        comparison = compared([first[at] for at in both], [second[at] for at in both]) if both else None
    return SuiteReport(
        suite=suite.name,
        evaluator=_kind(suite),
        cases=len(suite.cases),
        models=[_report(suite, name, one) for name, one in found],
        comparison=comparison,
    )


def _kind(suite: Suite) -> str:
    return str(suite.evaluator.__struct_config__.tag)


def _report(suite: Suite, name: str, one: _Scores) -> ModelScore:
    values = list(one.scores.values())
    score = mean_interval(values) if values else None
    calibrated = corrected(values, one.labels) if values and one.labels else None
    best = calibrated or score
    return ModelScore(
        model=name,
        scored=len(values),
        errors=one.errors,
        score=score,
        corrected=calibrated,
        judge=one.judge,
        failed=one.failed[:SHOWN],
        passed=None if suite.at_least is None else best is not None and best.mean >= suite.at_least,
    )


def _scored(
    suite: Suite, model: AnswerSource, judge: Callable[[], AnswerSource] | None, told: Callable[[int], None]
) -> _Scores:
    kind = suite.evaluator
    if isinstance(kind, Consistency):
        return _each(suite, told, lambda case: _consistent(suite, kind, model, case))
    answers: dict[int, str] = {}

    def answered(case: Case) -> str:
        return model.answer(suite.system, case.prompt, max_tokens=suite.max_tokens)

    if isinstance(kind, Judge):
        assert judge is not None

        def kept(case: Case) -> tuple[float, str, str]:
            answers[id(case)] = answered(case)
            return 0.0, "", ""

        errors = _each(suite, told, kept).errors  # all answers before the judge is loaded
        return _judged(suite, kind, judge(), answers, errors)
    with checks(kind) as check:

        def checked(case: Case) -> tuple[float, str, str]:
            said = answered(case)
            problem = check(case, said)
            return float(not problem), said, problem

        return _each(suite, told, checked)


def _each(
    suite: Suite, told: Callable[[int], None], score: Callable[[Case], tuple[float, str, str]]
) -> _Scores:
    found = _Scores({}, [])
    for number, case in enumerate(suite.cases):
        try:
            value, said, problem = score(case)
        except InvalidRequest as error:
            if error.param in ("rules", "expected"):  # the suite itself is wrong
                raise
            found.errors += 1
            found.failed.append(_failed(number, case, "", error.message))
        except HeadraceError as error:
            found.errors += 1
            found.failed.append(_failed(number, case, "", error.message))
        else:
            found.scores[number] = value
            if problem:
                found.failed.append(_failed(number, case, said, problem))
        told(number + 1)
    return found


def _failed(number: int, case: Case, said: str, problem: str) -> FailedCase:
    return FailedCase(case.id or str(number + 1), said[:SHOWN_CHARACTERS], problem)


def _consistent(
    suite: Suite, kind: Consistency, model: AnswerSource, case: Case
) -> tuple[float, str, Literal[""] | str]:
    said = [
        model.answer(
            *(suite.system, case.prompt),
            max_tokens=suite.max_tokens,
            temperature=kind.temperature,
            seed=seed,
        )
        for seed in range(kind.samples)
    ]
    votes = Counter(" ".join(plain(one).casefold().split()) for one in said)
    most, count = votes.most_common(1)[0]
    part = count / kind.samples
    if case.expected is not None and most != " ".join(str(case.expected).casefold().split()):
        return 0.0, said[0], f"{count} of {kind.samples} answers say something else than is expected"
    return part, said[0], "" if count == kind.samples else f"{count} of {kind.samples} answers agree"


def _judged(suite: Suite, kind: Judge, judge: AnswerSource, answers: dict[int, str], errors: int) -> _Scores:
    def ask(system: str, prompt: str, tokens: int) -> str:
        return judge.answer(system, prompt, max_tokens=tokens, choices=tuple(PREFERS))

    verdicts, found = Verdicts(kind, ask), _Scores({}, [], errors)
    for number, case in enumerate(suite.cases):
        if id(case) not in answers:
            continue
        said = answers[id(case)]
        preferred = verdicts.score(case.prompt, said, str(case.expected))
        if preferred is None:
            found.errors += 1
            found.failed.append(_failed(number, case, said, "the judge gave no verdict"))
            continue
        found.scores[number] = as_good(preferred)
        if preferred < 0.5:
            found.failed.append(_failed(number, case, said, "worse than expected, by the judge"))
    for label in kind.labels:
        preferred = verdicts.score(label.prompt, label.answer, label.expected)
        if preferred is not None:
            found.labels.append((label.score, as_good(preferred)))
    found.judge = JudgeRecord(
        model=kind.model,
        asked=verdicts.asked,
        unreadable=verdicts.unreadable,
        swayed=verdicts.swayed,
        labels=len(found.labels),
    )
    return found
