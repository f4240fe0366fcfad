"""What a person decides: a student answers from now on, or no longer."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from headrace.adapt.decisions.shadow import monthly_usd, worse_keys, worse_slices
from headrace.adapt.students.exposure import exposure_of, unasked
from headrace.adapt.students.ladder import CASCADE, CONFIDENCE, STUDENT, certified, gate_name
from headrace.adapt.students.registry import Registry, StudentRow, person
from headrace.adapt.traffic.examples import ExampleStore
from headrace.errors import InvalidRequest
from headrace.gateway.certificate import upper_bound
from headrace.gateway.gate import Calibration, GateStore, calibrate, identity
from headrace.gateway.routes import Route

AUDIT = 0.02
SHARE = 0.1
PLAIN = ("ordered", "fixed")
MOST_WORSE = 0.5
"""Part of a student's answers that its judge may find worse."""


def incumbent_of(store: ExampleStore, task: str) -> str:
    """The model that most requests of a task name."""
    rows = store.database.query(
        "SELECT model, count(*) FROM examples WHERE task = ? GROUP BY model ORDER BY 2 DESC LIMIT 1", (task,)
    )
    if not rows:
        raise InvalidRequest(f"task {task} has no examples", param="task")
    return str(rows[0][0])


def start_shadow(
    store: ExampleStore, task: str, who: str | None = None, judge: str | None = None
) -> StudentRow:
    """Let the newest student of a task be judged by what comes, by the model `judge` where that is a matter
    of judgment. InvalidRequest where there is none."""
    registry = Registry(store.database)
    student = registry.student(task, "trained", "shadow", "ready")
    more: dict[str, str] = {}
    if student.is_judged and student.state == "trained":
        if judge is None:
            raise InvalidRequest(
                f"student {student.id} of task {task} is compared by a judge: name a model in adapt.judge",
                param="task",
            )
        more["judge"] = judge
    registry.move(student, ("trained",), "shadow", more.get("judge", ""), who=who or person(), **more)
    return registry.student(task, "shadow", "ready")


def promote(
    store: ExampleStore,
    gates: GateStore,
    task: str,
    route: Route,
    who: str,
    *,
    share: float = SHARE,
    audit: float = AUDIT,
    accepts_slices: bool = False,
    canaries: Sequence[str] = (),
) -> StudentRow:
    """Let the proposed student of a task answer a part of the requests to a route, which grows by itself.

    InvalidRequest where none is proposed, the route chooses among targets itself, the student gives away what
    it has learned from, it is much worse for one of the keys, or groups of questions are much worse and
    `accepts_slices` does not say that this is known."""
    registry = Registry(store.database)
    student = registry.student(task, "ready", "rolled_back")
    if student.state == "rolled_back":
        raise InvalidRequest(
            f"student {student.id} of task {task} was rolled back: train another on what came since",
            param="task",
        )
    if problems := _exposed(student, canaries):
        raise InvalidRequest(
            f"student {student.id} of task {task} gives away what it has learned from: "
            f"{'; '.join(problems[:3])}; delete these examples with `headrace adapt forget`, and train again",
            param="task",
        )
    if keys := worse_keys(store, student):
        raise InvalidRequest(
            f"student {student.id} is much worse than what answers today for the keys {', '.join(keys)} of "
            "the team: their traffic differs, or one key's feedback is not to be trusted",
            param="task",
        )
    if route.settings.route not in PLAIN or route.settings.privacy != "off":
        raise InvalidRequest(
            f"{route.name!r} chooses by {route.settings.route!r} or looks for personal data: a student "
            "can be put before a model whose targets are tried in their order",
            param="route",
        )
    if (slices := worse_slices(store, student)) and not accepts_slices:
        raise InvalidRequest(
            f"student {student.id} is much worse in the groups {', '.join(map(str, slices))} of task {task}: "
            "look at them with `headrace adapt tasks`, and give --accept-slices if that is all right",
            param="task",
        )
    large = identity(route.targets[0])
    name = STUDENT + student.id
    if student.is_judged:
        calibration = _certified_by_judge(registry, student, large)
    else:
        calibration = certified(task, name, student.card.weights, student.pairs, student.card.risk, large)
    # The gate first: a promotion without one has no effect, a gate without promotion neither.
    gates.save(calibration)
    detail = (
        f"{route.name}, from {share:.0%} of the requests, ${monthly_usd(store, task):.2f} a month, "
        f"data {student.card.data_sha256[:16]}, weights {student.card.weights}"
    )
    with store.database.transaction():
        earlier = registry.students("promoted", task=task)
        promoted = registry.move(
            student,
            ("ready",),
            "promoted",
            detail,
            who=who,
            share=share,
            audit=audit,
            route=route.name,
            promoted_s=time.time(),
        )
        if not promoted:  # decided otherwise while this was looked at: what is promoted stays
            raise InvalidRequest(
                f"student {student.id} of task {task} is not ready any more: another decision about it came "
                "first; look at it with `headrace adapt status`",
                param="task",
            )
        for before in earlier:
            registry.move(before, ("promoted",), "replaced", f"by {student.id}", who=who)
    return registry.student(task, "promoted")


def _certified_by_judge(registry: Registry, student: StudentRow, large: str) -> Calibration:
    """What is certified is in how many answers at most the judge finds the student's worse: audits, which it
    judges, too, then find out where they are more."""
    pairs = registry.judged_pairs(student.id)
    wrong = sum(one.is_wrong for one in pairs)
    bound = upper_bound(wrong, len(pairs), CONFIDENCE) if pairs else 1.0
    risk = math.ceil(bound * 100 + 0.5) / 100
    if risk > MOST_WORSE:
        raise InvalidRequest(
            f"the judge finds {wrong:,} of {len(pairs):,} answers of student {student.id} worse, so that "
            f"{bound:.0%} of all may be; at most {MOST_WORSE:.0%} may",
            param="task",
        )
    return calibrate(
        pairs,
        route=gate_name(student.task),
        settings=CASCADE,
        task=student.task,
        small=f"local {STUDENT}{student.id} {student.card.weights}",
        large=large,
        risk=risk,
        confidence=CONFIDENCE,
        threshold=student.threshold,
    )


def _exposed(student: StudentRow, canaries: Sequence[str]) -> list[str]:
    """What it gives away; one that writes was asked when it was made."""
    if student.model.writes:
        count = unasked(canaries, student.card.canaries)
        later = f"{count:,} canaries of the settings came after it was made, train it again"
        return [*student.card.exposed, *([later] if count else [])]
    return exposure_of(student.model, student.id, canaries).problems


def roll_back(
    store: ExampleStore, task: str, who: str = "headrace", why: str = "asked for", student: str | None = None
) -> StudentRow | None:
    """The promoted student of a task answers no more; None where there was none. The incumbent is as it was:
    nothing has to be loaded."""
    registry = Registry(store.database)
    for found in registry.students("promoted", task=task):
        if student in (None, found.id) and registry.move(found, ("promoted",), "rolled_back", why, who=who):
            return found
    return None
