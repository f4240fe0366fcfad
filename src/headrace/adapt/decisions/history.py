"""A task as a person decides about it: what went wrong, its students with evidence, and all decisions."""

from __future__ import annotations

from msgspec import Struct

from headrace.adapt.decisions.comparisons import JudgeProgress, progress_of
from headrace.adapt.decisions.diagnosis import FailureMode, failures
from headrace.adapt.decisions.shadow import machine_usd_per_month, monthly_usd, worse_slices
from headrace.adapt.students.registry import STATES, Card, Decision, Registry, State, StudentRow
from headrace.adapt.traffic.examples import ExampleStore
from headrace.evals.calibrated_evidence import (
    JudgeCalibration,
    bounds_of,
    judged_capital,
    judged_difference,
    judged_lower_bound,
    judged_upper_bound,
)
from headrace.evals.paired_evidence import PairCounts, capital, lower_bound, turned

SHOWN = 10
"""Students."""


class PairedEvidence(Struct, frozen=True, kw_only=True):
    """The pairs in which a student was better, the same and worse than what answers today.

    `capital` is what the test's bets have made of 1: the student is proposed where it reaches `needed`, which
    is 1 / alpha. The mean difference of quality is above `lower`, and below `upper`, each with confidence
    1 - alpha, whenever one looks."""

    better: int
    same: int
    worse: int
    capital: float
    needed: float
    difference: float
    lower: float
    upper: float


class StudentView(Struct, frozen=True, kw_only=True):
    """A student. `answered` is the part of the requests that it answers, by its evidence, or before there is
    any by the examples that were held out; what it would save are dollars a month."""

    id: str
    state: State
    created_s: float
    card: Card
    evidence: PairedEvidence
    answered: float
    saves_usd_per_month: float
    slices: list[int]
    share: float
    audit: float
    route: str
    promoted_s: float | None
    judge: JudgeProgress | None = None


class TaskHistory(Struct, frozen=True, kw_only=True):
    """A task; decisions and the last students, the newest first."""

    task: str
    usd_per_month: float
    failures: list[FailureMode]
    students: list[StudentView]
    decisions: list[Decision]


def history(store: ExampleStore, task: str) -> TaskHistory:
    """Of a task, by its id. Nothing is computed by a model."""
    registry, monthly = Registry(store.database), monthly_usd(store, task)
    last = registry.students(*STATES, task=task, limit=SHOWN)
    return TaskHistory(
        task=task,
        usd_per_month=monthly,
        failures=failures(store, task),
        students=[_view(store, registry, one, monthly) for one in last],
        decisions=registry.decisions(task)[::-1],
    )


def evidence_of(counts: PairCounts, margin: float, alpha: float) -> PairedEvidence:
    """What the pairs say."""
    return PairedEvidence(
        better=counts.better,
        same=counts.same,
        worse=counts.worse,
        capital=capital(counts, -margin),
        needed=1 / alpha,
        difference=counts.difference,
        lower=lower_bound(counts, alpha),
        upper=-lower_bound(turned(counts), alpha),
    )


def judged_evidence(
    counts: PairCounts, labels: JudgeCalibration, margin: float, alpha: float
) -> PairedEvidence:
    """What the verdicts of a judge say, as far as people's labels trust it."""
    bounds = bounds_of(labels, margin, alpha)
    return PairedEvidence(
        better=counts.better,
        same=counts.same,
        worse=counts.worse,
        capital=judged_capital(counts, bounds),
        needed=bounds.needed,
        difference=judged_difference(counts, labels),
        lower=judged_lower_bound(counts, labels, alpha),
        upper=judged_upper_bound(counts, labels, alpha),
    )


def _view(store: ExampleStore, registry: Registry, one: StudentRow, monthly: float) -> StudentView:
    counts, answered = registry.counts(one.id)
    evidence = evidence_of(counts, one.card.margin, one.card.alpha)
    if one.is_judged:
        evidence = judged_evidence(counts, registry.calibration(one.id), one.card.margin, one.card.alpha)
    part = answered / counts.total if counts.total else one.card.share
    return StudentView(
        id=one.id,
        state=one.state,
        created_s=one.created_s,
        card=one.card,
        evidence=evidence,
        answered=part,
        saves_usd_per_month=monthly * part - (machine_usd_per_month(store, one) or 0.0),
        slices=worse_slices(store, one),
        share=one.share,
        audit=one.audit,
        route=one.route,
        promoted_s=one.promoted_s,
        judge=progress_of(registry, one) if one.is_judged else None,
    )
