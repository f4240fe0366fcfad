"""Guards as they are configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, ValidationError, convert

from headrace.errors import InvalidRequest, UsageError

Stage = Literal["input", "output"]
Action = Literal["block", "redact", "flag"]


class GuardSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table `[guards.NAME]`.

    "pii" finds `entities` (default: all) with patterns, "regex" the `patterns` in RE2's syntax, "classifier"
    the `labels` that `model` gives with a score from `threshold` (default 0.4 of "pii", else 0.5). A guard
    reads what goes in, what comes out, or both (`on`). `always`: it reads every request, and otherwise those
    that name it.
    """

    kind: Literal["pii", "regex", "classifier"]
    model: str | None = None
    labels: tuple[str, ...] = ()
    entities: tuple[str, ...] | None = None
    patterns: tuple[str, ...] = ()
    threshold: float | None = None
    on: tuple[Stage, ...] = ("input", "output")
    action: Action = "block"
    always: bool = True


def read_guards(tables: Mapping[str, object] | None) -> dict[str, GuardSettings]:
    """The guards of `[guards]`, by name; UsageError for what means nothing."""
    return {name: _read(name, table) for name, table in (tables or {}).items()}


def _read(name: str, table: object) -> GuardSettings:
    place = f"guards.{name}"
    try:
        guard = convert(table, GuardSettings)
    except ValidationError as error:
        raise UsageError(f"{place} cannot be read: {error}") from None
    if guard.kind == "classifier" and not guard.labels:
        raise UsageError(f"{place} has no labels: name those of the model that it acts on")
    if guard.kind == "regex" and not guard.patterns:
        raise UsageError(f"{place} has no patterns: give at least one")
    if guard.kind == "classifier" and guard.action == "redact":
        raise UsageError(f"{place}: a classifier reads whole texts, so that it cannot redact: block or flag")
    if guard.threshold is not None and not 0 <= guard.threshold <= 1:
        raise UsageError(f"{place}: threshold is {guard.threshold}, it must be between 0 and 1")
    fields = {"pii": ("entities",), "regex": ("patterns",), "classifier": ("model", "labels")}
    for kind, names in fields.items():
        for field in names if kind != guard.kind else ():
            if getattr(guard, field):
                raise UsageError(f"{place}: {field} has no effect on a guard of kind {guard.kind}")
    if not guard.on:
        raise UsageError(f'{place}: on is empty: name "input", "output" or both')
    return guard


def chosen(guards: Mapping[str, GuardSettings], names: tuple[str, ...]) -> dict[str, GuardSettings]:
    """Those of a request: the ones that are always on, and the named ones; InvalidRequest for others."""
    for name in names:
        if name not in guards:
            known = ", ".join(guards) or "none"
            raise InvalidRequest(f"unknown guard {name[:80]!r}: configured are {known}", param="guard")
    return {name: one for name, one in guards.items() if one.always or name in names}
