"""Arguments of calls against the schema of their tool. Needs headrace[tools]."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NoReturn

import jsonschema_rs
import msgspec

from headrace.tools.tool import Arguments, Json, ToolRefused

MAX_ARGUMENTS = 2**18
"""Bytes of arguments as JSON."""


def problem_of_schema(schema: Json) -> str | None:
    """Why arguments cannot be checked against a schema; None where they can."""
    try:
        _validator(msgspec.json.encode(schema))
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return str(error)[:200]
    return None


def check_arguments(name: str, arguments: Arguments, schema: Json) -> None:
    """Raise ToolRefused, with the place, where the arguments do not match."""
    size = len(msgspec.json.encode(arguments))
    if size > MAX_ARGUMENTS:
        raise ToolRefused(f"{name}: the arguments have {size:,} bytes, at most {MAX_ARGUMENTS:,} may be")
    check_value(name, arguments, schema)


def check_value(name: str, value: Any, schema: Json) -> None:
    """Raise ToolRefused, with the place, where a value does not match a schema."""
    error = next(iter(_validator(msgspec.json.encode(schema)).iter_errors(value)), None)
    if error is not None:
        place = "/".join(str(part) for part in error.instance_path)[:80]
        where = f" at {place}" if place else ""
        raise ToolRefused(f"{name}{where}: {error.message[:300]}", param=place or None)


@lru_cache(512)
def _validator(schema: bytes) -> Any:
    """No references to other documents, patterns in linear time."""
    return jsonschema_rs.validator_for(
        msgspec.json.decode(schema),
        retriever=_no_retrieval,
        pattern_options=jsonschema_rs.RegexOptions(size_limit=2**20),
    )


def _no_retrieval(uri: str) -> NoReturn:
    raise ValueError(f"references to other documents are not followed: {uri[:80]}")
