"""Guards as they are configured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from headrace.errors import InvalidRequest, UsageError
from headrace.tasks.guards.schema import SchemaCheck
from headrace.tasks.pii.analyzer import THRESHOLD, Analyzer
from headrace.tasks.pii.custom import CustomPattern, CustomRecognizer
from headrace.weights.hub.bundled import bundled_guards

Stage = Literal["input", "output"]
Action = Literal["block", "redact", "flag"]
Kind = Literal["pii", "regex", "classifier", "topics", "schema", "words"]

_FIELDS: Mapping[Kind, tuple[str, ...]] = {
    "pii": ("entities",),
    "regex": ("patterns",),
    "classifier": ("model", "labels"),
    "topics": ("model", "topics", "allowed", "denied"),
    "schema": ("schema",),
    "words": (),
}
_STAGES: Mapping[Kind, tuple[Stage, ...]] = {
    "topics": ("input",),
    "schema": ("output",),
    "words": ("input",),
}


class GuardSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table `[guards.NAME]`.

    "pii" finds `entities` (default: all) with patterns, "regex" the `patterns` in RE2's syntax, "classifier"
    the `labels` that `model` gives with a score from `threshold` (default 0.4 of "pii", else 0.5).
    "topics" tells `topics` apart, by examples of each or without any by their names, and finds those that
    are `denied`, or not `allowed`. "schema" finds output that is not JSON of this JSON `schema`. A guard
    reads what goes in, what comes out, or both (`on`; default: "topics" what goes in, "schema" what comes
    out, others both). "words" is the classifier of the guard's name that ships with Headrace: it needs no
    model, and a request may name it without a table, too. `always`: it reads every request, and otherwise
    those that name it.
    """

    kind: Kind
    model: str | None = None
    labels: tuple[str, ...] = ()
    entities: tuple[str, ...] | None = None
    patterns: tuple[str, ...] = ()
    topics: dict[str, tuple[str, ...]] = {}
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    schema: dict[str, Any] = {}
    threshold: float | None = None
    on: tuple[Stage, ...] | None = None
    action: Action = "block"
    always: bool = True

    def reads(self, stage: Stage) -> bool:
        """Whether it reads what goes in, or what comes out."""
        return stage in (("input", "output") if self.on is None else self.on)

    def analyzer(self, name: str) -> Analyzer:
        """What finds what a guard of patterns, of this name, is about. InvalidRequest for unknown entities
        and patterns that cannot be searched."""
        if self.kind == "pii":
            return Analyzer(self.entities, threshold=THRESHOLD if self.threshold is None else self.threshold)
        label = "".join(one if one.isascii() and one.isalnum() else "_" for one in name.upper())
        patterns = [CustomPattern(regex=one, score=1.0, ignore_case=False) for one in self.patterns]
        return Analyzer([label], custom=[CustomRecognizer(label, patterns, param="guards")])

    @property
    def asks_a_model(self) -> bool:
        """Whether a model reads each text."""
        return self.kind in ("classifier", "topics")

    @property
    def least(self) -> float:
        """The score from which the likeliest label counts."""
        return 0.5 if self.threshold is None else self.threshold

    @property
    def unwanted(self) -> tuple[str, ...]:
        """The topics that it finds."""
        return self.denied or tuple(name for name in self.topics if name not in self.allowed)


def read_guards(tables: Mapping[str, object] | None) -> dict[str, GuardSettings]:
    """The guards of `[guards]`, by name; UsageError for what means nothing."""
    return {name: _read(name, table) for name, table in (tables or {}).items()}


def _read(name: str, table: object) -> GuardSettings:
    place = f"guards.{name}"
    try:
        guard = convert(table, GuardSettings)
    except ValidationError as error:
        kinds = f" (kinds are {', '.join(get_args(Kind))})" if str(error).endswith("`$.kind`") else ""
        raise UsageError(f"{place} cannot be read: {error}{kinds}") from None
    if problem := _problem(guard):
        raise UsageError(f"{place}: {problem}")
    if guard.kind in ("pii", "regex"):
        try:
            guard.analyzer(name)
        except InvalidRequest as error:
            raise UsageError(f"{place}: {error}") from None
    if guard.kind == "schema":
        SchemaCheck(name, guard.schema)
    if guard.kind == "words" and name not in bundled_guards():
        shipped = ", ".join(bundled_guards())
        raise UsageError(f"{place}: no classifier of this name ships, there are {shipped}: rename it")
    return guard if guard.on is not None else replace(guard, on=_STAGES.get(guard.kind))


def _problem(guard: GuardSettings) -> str | None:
    for field in {field for names in _FIELDS.values() for field in names}:
        if getattr(guard, field) and field not in _FIELDS[guard.kind]:
            return f"{field} has no effect on a guard of kind {guard.kind}"
    if guard.kind == "classifier" and not guard.labels:
        return "it has no labels: name those of the model that it acts on"
    if guard.kind == "regex" and not guard.patterns:
        return "it has no patterns: give at least one"
    if guard.kind == "schema" and not guard.schema:
        return "it has no schema: give a JSON schema"
    if guard.action == "redact" and guard.kind not in ("pii", "regex"):
        return f"a guard of kind {guard.kind} reads whole texts, so that it cannot redact: block or flag"
    if guard.threshold is not None and not 0 <= guard.threshold <= 1:
        return f"threshold is {guard.threshold}, it must be between 0 and 1"
    if guard.on is not None and not guard.on:
        return 'on is empty: name "input", "output" or both'
    if guard.kind == "schema" and guard.on is not None and "input" in guard.on:
        return 'a guard of kind schema reads answers: leave on out, or name "output" only'
    return _topics_problem(guard) if guard.kind == "topics" else None


def _topics_problem(guard: GuardSettings) -> str | None:
    if len(guard.topics) < 2:
        return 'it needs two topics at least, of which one may be "other", with texts of each'
    if bool(guard.allowed) == bool(guard.denied):
        return "name topics in allowed or in denied: one of the two"
    for name in (*guard.allowed, *guard.denied):
        if name not in guard.topics:
            return f"{name!r:.80} is none of its topics: {', '.join(guard.topics)}"
    if not guard.unwanted:
        return 'all of its topics are allowed: add one that is not, such as "other"'
    given = [name for name, texts in guard.topics.items() if texts]
    if given and len(given) < len(guard.topics):
        without = next(name for name in guard.topics if name not in given)
        return f"topic {without!r:.80} has no examples: give some of every topic, or of none"
    return None


def check_served(guards: Mapping[str, GuardSettings], serves: Callable[[str], bool], served: str) -> None:
    """UsageError for a guard whose model is not one of those that are served: each request would fail."""
    for name, guard in guards.items():
        if guard.model is not None and not serves(guard.model):
            raise UsageError(
                f"guards.{name}: the model {guard.model!r:.200} is not served, this server serves {served}:"
                f" add [models.{guard.model}] to headrace.toml, or name another in guards.{name}.model"
            )


def chosen(guards: Mapping[str, GuardSettings], names: tuple[str, ...]) -> dict[str, GuardSettings]:
    """Those of a request: the ones that are always on, and the named ones; InvalidRequest for others."""
    wanted = dict.fromkeys(names)  # a request may name one a million times
    found = {name: one for name, one in guards.items() if one.always or name in wanted}
    for name in wanted:
        if name in guards:
            continue
        if name not in (shipped := bundled_guards()):
            known = ", ".join(guards) or "none"
            raise InvalidRequest(
                f"unknown guard {name[:80]!r}: configured are {known}, and {', '.join(shipped)} ships",
                param="guard",
            )
        found[name] = GuardSettings(kind="words", on=_STAGES["words"])
    return found
