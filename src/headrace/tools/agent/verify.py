"""Checks of an agent's answer: a JSON Schema, a pattern, a statement of SQL, a model that judges."""

from __future__ import annotations

import importlib
import json
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.chat.messages import Message
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import choice_constraint
from headrace.inference.call_context import CallContext
from headrace.inference.handler import Handler, open_stream
from headrace.inference.requests import ChatRequest
from headrace.inference.result import collect
from headrace.tools.arguments import check_value
from headrace.tools.tool import Json, ServedTools, ToolRefused

MAX_PATTERN = 4096
_re2: Any = importlib.import_module("re2")  # it has no types


class AnswerCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """One check. `schema` is of kind schema; `pattern` must match somewhere (kind regex); `sql` selects one
    value, true where the answer, its parameter $1, is right; `question` is asked of the model `judge` (None:
    the one that answers), which says yes or no."""

    kind: Literal["schema", "regex", "sql", "judge"]
    schema: Json | None = None
    pattern: str | None = None
    sql: str | None = None
    question: str | None = None
    judge: str | None = None


_NEEDS = {"schema": "schema", "regex": "pattern", "sql": "sql", "judge": "question"}


def read_checks(given: object) -> tuple[AnswerCheck, ...]:
    """Checks as a request has them; InvalidRequest for what is none."""
    try:
        checks = msgspec.convert(given, tuple[AnswerCheck, ...])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"verify: {error}", param="verify") from None
    for check in checks:
        if getattr(check, _NEEDS[check.kind]) is None:
            raise InvalidRequest(
                f"verify: a check of kind {check.kind} needs {_NEEDS[check.kind]}", param="verify"
            )
        if check.pattern is not None:
            _pattern(check.pattern)
    return checks


class Verifier:
    """Runs the checks of a request."""

    def __init__(self, handler: Handler, tools: ServedTools) -> None:
        self._handler, self._tools = handler, tools

    async def problem(
        self, checks: tuple[AnswerCheck, ...], answer: str, request: ChatRequest, call: CallContext
    ) -> str | None:
        """What is wrong with an answer, for the model that corrects it; None where all checks pass."""
        for check in checks:
            found = await self._problem(check, answer, request, call)
            if found is not None:
                return found
        return None

    async def _problem(
        self, check: AnswerCheck, answer: str, request: ChatRequest, call: CallContext
    ) -> str | None:
        if check.schema is not None:
            return _schema_problem(answer, check.schema)
        if check.pattern is not None:
            return None if _pattern(check.pattern).search(answer) else f"it does not match {check.pattern}"
        if check.sql is not None:
            result = await self._tools.run("sql", {"sql": check.sql, "parameters": [answer]}, call)
            if result.is_error:
                return f"the check {check.sql} has failed: {result.text[:300]}"
            rows: Any = json.loads(result.text)
            right = len(rows) == 1 and list(rows[0].values()) == [True]
            return None if right else f"the check {check.sql} is not true of it"
        return await self._judged(check, answer, request, call)

    async def _judged(
        self, check: AnswerCheck, answer: str, request: ChatRequest, call: CallContext
    ) -> str | None:
        asked = f"{check.question}\n\nAnswer to judge:\n{answer}\n\nSay yes or no."
        judging = replace(
            request,
            id=f"{request.id}.judge",
            model=check.judge or request.model,
            messages=(Message("user", asked),),
            tools=None,
            sampling={"temperature": 0.0, "max_tokens": 8},
            constraint=choice_constraint(["yes", "no"]),
        )
        result = await collect(await open_stream(self._handler, judging, call))
        said = result.prompts[0].choices[0].output.content
        return None if said == "yes" else f"the judge says no to: {check.question}"


def _schema_problem(answer: str, schema: Json) -> str | None:
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError) as error:
        return f"it is no JSON: {str(error)[:100]}"
    try:
        check_value("the answer", value, schema)
    except ToolRefused as error:
        return error.message
    return None


def _pattern(text: str) -> Any:
    if len(text) > MAX_PATTERN:
        raise InvalidRequest(
            f"verify: a pattern has {len(text):,} characters, at most {MAX_PATTERN:,} may be"
        )
    options = _re2.Options()
    options.log_errors = False
    try:
        return _re2.compile(text, options)
    except _re2.error as error:
        raise InvalidRequest(f"verify: the pattern is none: {str(error)[:200]}", param="verify") from None
