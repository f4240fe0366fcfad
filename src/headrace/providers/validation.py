"""Structured output of providers that do not guarantee it, checked here."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NoReturn

import jsonschema_rs
import msgspec

from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint
from headrace.providers.answer import UnusableAnswer
from headrace.providers.schemas import schema_of


def compiled(wanted: Constraint, *, closes: bool) -> None:
    """Raise InvalidRequest for a schema that cannot be checked, before anything is sent."""
    if wanted.kind == "json_schema":
        _validator(wanted, closes)


def check_output(text: str, wanted: Constraint, *, closes: bool) -> None:
    """Raise UnusableAnswer where a whole answer does not match its constraint."""
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise UnusableAnswer("answered with text that is no JSON, where JSON was asked for") from None
    if wanted.kind == "json_object":
        if not isinstance(value, dict):
            raise UnusableAnswer("answered with JSON that is no object")
    elif not _validator(wanted, closes).is_valid(value):
        raise UnusableAnswer("answered with JSON that does not match the schema")


@lru_cache(256)
def _validator(wanted: Constraint, closes: bool) -> Any:
    """The validator of a schema: no references to other documents, patterns in linear time."""
    schema = schema_of(wanted, closes=closes)
    try:
        return jsonschema_rs.validator_for(
            schema, retriever=_no_retrieval, pattern_options=jsonschema_rs.RegexOptions(size_limit=2**20)
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        name = wanted.param or wanted.kind
        raise InvalidRequest(
            f"{name} is a schema that cannot be checked: {str(error)[:200]}", param=name
        ) from None


def _no_retrieval(uri: str) -> NoReturn:
    raise ValueError(f"references to other documents are not followed: {uri[:80]}")
