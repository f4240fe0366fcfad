"""The objects of /v1/adapt/*, as the commands of `headrace adapt` print them with --json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from headrace.api.http.body import RequestBody
from headrace.api.http.query import Query

TaskWord = Annotated[
    str, Meta(min_length=1, max_length=200, description="A task's id, the beginning of it, or its name.")
]
Part = Annotated[float, Meta(ge=0.001, le=1)]
Word = Annotated[str, Meta(min_length=1, max_length=200)]


class TaskBody(RequestBody, kw_only=True):
    """Which task."""

    task: TaskWord


class TrainBody(TaskBody, kw_only=True):
    """Which task, and which kind of student."""

    rung: Annotated[
        Literal["exact", "nearest", "head", "tagger", "lora", "distilled"] | None,
        Meta(description="Try this kind alone, whatever others reach. Default: the ladder."),
    ] = None


class FindBody(RequestBody, kw_only=True):
    """Nothing: the groups of all tasks are found anew."""


class RenameBody(TaskBody, kw_only=True):
    """A name that stays."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]


class EvaluatorBody(TaskBody, kw_only=True):
    """What compares students with what answers today."""

    evaluator: Annotated[
        Literal["equal", "judge", "auto"],
        Meta(description="Of students that are trained from now on; auto: a judge where equality fails."),
    ]


class PairsQuery(Query, frozen=True, kw_only=True):
    """How many pairs."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


class LabelBody(RequestBody, kw_only=True):
    """Which of both answers of a pair a person prefers."""

    pair: Annotated[str, Meta(min_length=1, max_length=100)]
    preferred: Annotated[
        Literal["1", "2", "tie", "skip"],
        Meta(description="skip: it cannot be told, which speaks against the student."),
    ]


class LabelsBody(RequestBody, kw_only=True):
    """Labels, of which all are kept or none."""

    labels: Annotated[list[LabelBody], Meta(min_length=1, max_length=1000)]


class PairsReply(Struct, frozen=True, kw_only=True):
    """Pairs of answers to label, in this order: nothing says which is the student's."""

    data: list[dict[str, Any]]
    object: Literal["list"] = "list"


class LabelsReply(Struct, frozen=True, kw_only=True):
    """How many labels were kept, how the student stands, and about how many more are needed."""

    kept: int
    state: str
    judge: dict[str, Any]


class PromoteBody(TaskBody, kw_only=True):
    """How a student is let in."""

    share: Annotated[Part, Meta(description="Part of the requests at first; doubled after 20 checks.")] = 0.1
    audit: Annotated[Part, Meta(description="Part of its answers that is checked.")] = 0.02
    accept_slices: Annotated[bool, Meta(description="Also where groups of questions are much worse.")] = False


class ForgetBody(RequestBody, kw_only=True):
    """One of them: all of a key, a reply, or everything."""

    key: Word | None = None
    reply: Word | None = None
    all: bool = False


class ExportQuery(Query, frozen=True, kw_only=True):
    """Whose records."""

    key: Annotated[str, Meta(max_length=200, description="Of this key only.")] | None = None


class HistoryQuery(Query, frozen=True, kw_only=True):
    """Of which task."""

    task: TaskWord


class StatusReply(Struct, frozen=True, kw_only=True):
    """What is collected, what was not kept, and how students stand."""

    enabled: bool
    keys: list[str]
    tasks: int
    examples: int
    usd: float
    dropped: dict[str, int]
    students: list[dict[str, Any]]
    alerts: list[dict[str, Any]]
    trainings: list[dict[str, Any]]


class TasksReply(Struct, frozen=True, kw_only=True):
    """Tasks, those that cost most first, with the groups of their questions."""

    data: list[dict[str, Any]]
    object: Literal["list"] = "list"


class DiagnoseReply(Struct, frozen=True, kw_only=True):
    """What a task costs, where it goes wrong, and what a student could answer."""

    task: str
    name: str
    examples: int
    usd: float
    usd_per_month: float
    median_s: float
    slow_s: float
    distinct_answers: int
    common_answer: float
    failures: list[dict[str, Any]]
    rungs: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    missing: str


class HistoryReply(Struct, frozen=True, kw_only=True):
    """What went wrong, the students of a task with the evidence about them, and every decision, newest
    first. A student is proposed where the `capital` of its evidence reaches `needed`."""

    task: str
    usd_per_month: float
    failures: list[dict[str, Any]]
    students: list[dict[str, Any]]
    decisions: list[dict[str, Any]]


class TrainReply(Struct, frozen=True, kw_only=True):
    """A student, and what it was made of."""

    student: str
    task: str
    card: dict[str, Any]


class ShadowReply(Struct, frozen=True, kw_only=True):
    """How a student stands beside what answers today."""

    standing: Literal["open", "ready", "inferior"]
    prospect: dict[str, Any] | None


class PromoteReply(Struct, frozen=True, kw_only=True):
    """Which part of the requests to a model a student gets."""

    task: str
    student: str
    route: str
    share: float


class RollbackReply(Struct, frozen=True, kw_only=True):
    """The student that answers no more, and all decisions about its task."""

    student: str
    decisions: list[dict[str, Any]]


class ForgetReply(Struct, frozen=True):
    """How many examples are deleted, and which students that had learned from them."""

    forgotten: int
    students: list[str]
