"""What the commands of `headrace adapt` and the endpoints /v1/adapt/* do, and what both answer with.

Every call reads and writes the file, and may compute: not for the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from headrace.adapt.decisions.alerts import Alert, latest_alerts
from headrace.adapt.decisions.comparisons import (
    Compare,
    Labeled,
    PairLabel,
    PairToLabel,
    give_labels,
    pairs_to_label,
)
from headrace.adapt.decisions.promotion import AUDIT, SHARE, incumbent_of, promote, roll_back, start_shadow
from headrace.adapt.decisions.shadow import Prospect, Written, catch_up, prospects, tell_ready
from headrace.adapt.students.checkpoints import RunningTraining, running_trainings
from headrace.adapt.students.registry import Card, Decision, Registry
from headrace.adapt.students.rungs.served import remove_adapters
from headrace.adapt.traffic.examples import ExampleStore, Forgotten
from headrace.adapt.traffic.tasks import Embed
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import InvalidRequest
from headrace.evals.paired_evidence import Standing
from headrace.gateway.gate import GateStore
from headrace.gateway.routes import Route, plain_route

ServedName = Callable[[str], str | None]
"""The own name of a model of this machine that clients may give another one; None where it is none."""
MAX_NAME = 200
"""Characters of a task's name."""


class AdaptStatus(Struct, frozen=True, kw_only=True):
    """What is collected, what was not kept, what could be saved, and what a person should know of."""

    enabled: bool
    keys: list[str]
    tasks: int
    examples: int
    usd: float
    dropped: Mapping[str, int]
    students: list[Prospect]
    alerts: list[Alert]
    trainings: list[RunningTraining]


class Shadowed(Struct, frozen=True, kw_only=True):
    """How a student stands; no prospect where it is worse than the margin allows."""

    standing: Standing
    prospect: Prospect | None


class Trained(Struct, frozen=True, kw_only=True):
    """A student that was made."""

    student: str
    task: str
    card: Card


class Promoted(Struct, frozen=True, kw_only=True):
    """A student answers a part of the requests of a task to a route."""

    task: str
    student: str
    route: str
    share: float


class RolledBack(Struct, frozen=True, kw_only=True):
    """The student that answers no more, and all decisions about students of its task."""

    student: str
    decisions: list[Decision]


class PromotionTerms(Struct, frozen=True, kw_only=True):
    """How a student is let in: the part of the requests that it gets at first, the part of its answers that
    is checked, whether groups of questions in which it is much worse are all right, and texts that it must
    not have kept."""

    share: float = SHARE
    audit: float = AUDIT
    accepts_slices: bool = False
    canaries: tuple[str, ...] = ()


def status_of(store: ExampleStore, settings: AdaptSettings) -> AdaptStatus:
    """See `headrace adapt status`."""
    exists = store.database.exists
    tasks = store.tasks()
    return AdaptStatus(
        enabled=settings.enabled,
        keys=list(settings.keys),
        tasks=len(tasks),
        examples=sum(one.examples for one in tasks),
        usd=sum(one.nano_usd for one in tasks) / 1e9,
        dropped=dict(store.dropped()) if exists else {},
        students=prospects(store) if exists else [],
        alerts=latest_alerts(store.database),
        trainings=running_trainings(store.database),
    )


def rename(store: ExampleStore, task: str, name: str) -> None:
    """Give a task a name that stays. InvalidRequest where it is none, or another task's."""
    wanted, shown = store.task(task), " ".join(name.split())
    if not shown or len(shown) > MAX_NAME or not shown.isprintable():
        raise InvalidRequest(
            f"a task's name has 1 to {MAX_NAME} characters that can be printed, this one has {len(shown):,}",
            param="name",
        )
    other = next((one for one in store.tasks() if one.id != wanted.id and shown in (one.id, one.name)), None)
    if other is not None:
        raise InvalidRequest(f"task {other.id} is named {shown!r} already: choose another name", param="name")
    store.rename(wanted.id, shown)


EVALUATORS = ("equal", "judge", "auto")


def evaluate_by(store: ExampleStore, task: str, evaluator: str) -> None:
    """Say what compares students of a task that are trained from now on with the incumbent: equality, a
    judge, or whichever fits."""
    if evaluator not in EVALUATORS:
        raise InvalidRequest(
            f"evaluator is {evaluator!r:.40}, it must be one of {', '.join(EVALUATORS)}", param="evaluator"
        )
    store.evaluate_by(store.task(task).id, "" if evaluator == "auto" else evaluator)


def to_label(store: ExampleStore, task: str, limit: int) -> list[PairToLabel]:
    """Pairs of answers of a task's student that people should compare, in their order."""
    return pairs_to_label(store.database, store.task(task).id, limit)


def label(store: ExampleStore, task: str, labels: Sequence[PairLabel], who: str) -> Labeled:
    """See `headrace adapt label`. A person is told where the student is ready by that."""
    wanted = store.task(task).id
    found = give_labels(store.database, wanted, labels, who)
    if found.state == "ready":
        tell_ready(store, Registry(store.database).student(wanted, "ready"))
    return found


def forget(store: ExampleStore, key: str | None, reply: str | None) -> Forgotten:
    """See `headrace adapt forget`; with neither all is deleted."""
    gone = store.forget(key, reply)
    if store.database.exists:
        remove_adapters(store.database)
    return gone


def shadow(
    store: ExampleStore,
    task: str,
    embed: Embed,
    who: str,
    written: Written | None = None,
    judge: str | None = None,
    compare: Compare | None = None,
) -> Shadowed:
    """See `headrace adapt shadow`; `judge` is the model by which `compare` does so."""
    student = start_shadow(store, store.task(task).id, who, judge)
    said = catch_up(store, student, embed, written, compare)
    found = [one for one in prospects(store) if one.student == student.id]
    return Shadowed(standing=said, prospect=found[0] if found else None)


def promote_student(
    store: ExampleStore,
    gates: GateStore,
    task: str,
    routes: Sequence[Route],
    served_name: ServedName,
    who: str,
    how: PromotionTerms,
) -> Promoted:
    """See `headrace adapt promote`; `routes` are the remote models that there are."""
    wanted = store.task(task)
    found = promote(
        *(store, gates, wanted.id, _incumbent(store, wanted.id, routes, served_name), who),
        share=how.share,
        audit=how.audit,
        accepts_slices=how.accepts_slices,
        canaries=how.canaries,
    )
    return Promoted(task=wanted.id, student=found.id, route=found.route, share=found.share)


def _incumbent(store: ExampleStore, task: str, routes: Sequence[Route], served_name: ServedName) -> Route:
    """What most requests of a task name: a remote model, or one of this machine."""
    model = incumbent_of(store, task)
    names = {name: one for one in routes for name in (one.name, *one.settings.aliases)}
    if model in names:
        return names[model]
    local = served_name(model)
    if local is None:
        raise InvalidRequest(
            f"requests of task {task} name {model!r}, which is neither a remote model of [models] nor a "
            "model that is served here: a student can be put before what answers them alone",
            param="task",
        )
    return plain_route(local)


def roll_back_student(store: ExampleStore, task: str, who: str) -> RolledBack:
    """See `headrace adapt rollback`."""
    wanted = store.task(task)
    found = roll_back(store, wanted.id, who)
    if found is None:
        raise InvalidRequest(f"task {wanted.id} has no promoted student", param="task")
    return RolledBack(student=found.id, decisions=Registry(store.database).decisions(wanted.id))


def plain(found: Struct | Sequence[Struct]) -> object:
    """As JSON has it."""
    return msgspec.to_builtins(found)
