"""The pairs of `headrace route calibrate`, and their scores, which are paid for: kept until they are used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from headrace.cli.terminal import note
from headrace.errors import UsageError

_NAMES = ("score", "is_wrong", "small_model", "large_model")


class ScoredPairs:
    """Pairs of a file of JSON lines. Scores are appended to FILE.scored as they come, so that a calibration
    that is killed goes on, and another risk costs nothing. They hold for the route as it is now: `settings`
    are its settings, encoded."""

    def __init__(self, file: Path, route: str, settings: bytes) -> None:
        """UsageError for a file that has no pairs."""
        self._lines = _objects(file)
        self._route, self._settings = route, settings
        self._file = file.with_name(f"{file.name}.scored")

    def scores(
        self, ask: Callable[[dict[str, Any]], dict[str, Any]], shown: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """Each line with its score; `ask` is called with the bodies of those that have none."""
        given = [
            _given(line, where) if "score" in line else None for where, line in enumerate(self._lines, 1)
        ]
        names = [self._name(line) for line in self._lines]
        kept = self._kept()
        if count := sum(name in kept for name in names):
            note(f"{count:,} of {len(names):,} pairs were scored before; to ask again, delete {self._file}")
        for where, (name, line, score) in enumerate(zip(names, self._lines, given, strict=True), 1):
            if score is None and name not in kept:
                kept[name] = self._asked(name, _body(line, self._route), ask)
            shown(f"{where:,} of {len(names):,} pairs")
        return [score or kept[name] for name, score in zip(names, given, strict=True)]

    def _name(self, line: Mapping[str, Any]) -> str:
        return hashlib.sha256(self._settings + msgspec.json.encode([self._route, line])).hexdigest()

    def _kept(self) -> dict[str, dict[str, Any]]:
        """What an earlier call has paid for. A line that was torn by a kill is asked again."""
        found: dict[str, dict[str, Any]] = {}
        for line in _bytes(self._file).splitlines() if self._file.exists() else ():
            try:
                name, score = msgspec.json.decode(line, type=tuple[str, dict[str, Any]])
            except msgspec.MsgspecError:
                continue
            if all(key in score for key in _NAMES):
                found[name] = score
        return found

    def _asked(
        self, name: str, body: dict[str, Any], ask: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        try:
            with self._file.open("ab") as file:  # opened first: what cannot be kept is not paid
                score = ask(body)
                file.write(b"\n" + msgspec.json.encode((name, score)) + b"\n")  # the first ends a torn line
        except OSError as error:
            raise UsageError(
                f"{self._file}, where scores are kept, cannot be written: {error.strerror}"
            ) from None
        return score


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None


def _objects(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, line in enumerate(_bytes(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = msgspec.json.decode(line)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{file}, line {number}: {error}") from None
        if not isinstance(value, dict):
            raise UsageError(f"{file}, line {number} is no object")
        found.append(cast("dict[str, Any]", value))
    return found


def _given(line: Mapping[str, Any], where: int) -> dict[str, Any]:
    """The score that a line has itself."""
    missing = [name for name in _NAMES if name not in line]
    if missing or isinstance(line["score"], bool) or not isinstance(line["score"], int | float):
        raise UsageError(f"line {where} needs {', '.join(missing) or 'a number as score'}")
    return {name: line[name] for name in _NAMES}


def _body(line: Mapping[str, Any], route: str) -> dict[str, Any]:
    body = {name: value for name, value in line.items() if name != "prompt"}
    if "prompt" in line:
        body["messages"] = [{"role": "user", "content": line["prompt"]}]
    return {**body, "model": route}
