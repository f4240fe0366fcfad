"""Whether an answer is JSON of a schema."""

from __future__ import annotations

import importlib
import json
from typing import Any

from headrace.errors import UsageError

MAX_LABEL = 120


class SchemaCheck:
    """A JSON schema, in the draft that it names (2020-12 where it names none)."""

    def __init__(self, name: str, schema: dict[str, Any]) -> None:
        try:
            library: Any = importlib.import_module("jsonschema_rs")
        except ImportError:
            raise UsageError(
                f"guards.{name}: a guard of kind schema needs jsonschema-rs: pip install 'headrace[guards]'"
            ) from None
        try:
            self._validator = library.validator_for(schema)
        except Exception as error:  # its classes of errors are many
            raise UsageError(f"guards.{name}: schema is none: {str(error)[:200]}") from None

    def problem(self, text: str) -> str | None:
        """What is wrong with a text, without a word of its contents; None where it is right."""
        try:
            value = json.loads(text, parse_constant=_refused)
        except (ValueError, RecursionError):
            return "no JSON"
        error = next(iter(self._validator.iter_errors(value)), None)
        if error is None:
            return None
        place = "/".join(str(part) for part in error.schema_path)
        return f"against the schema's /{place}"[:MAX_LABEL]


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
