"""YAML files that people write, read without what may stand for more than memory holds."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

from headrace.errors import UsageError

_yaml: Any = importlib.import_module("yaml")  # it has no types


def read_yaml(data: bytes, what: str, max_parts: int) -> Mapping[str, object]:
    """The mapping of a document; UsageError names `what` and the place of what is none, or has aliases."""
    try:
        for count, event in enumerate(_yaml.parse(data, Loader=_yaml.SafeLoader)):
            if isinstance(event, _yaml.AliasEvent) or count >= max_parts:
                why = "has aliases" if count < max_parts else f"has more than {max_parts:,} parts"
                raise UsageError(f"{what} {why}: write it without")
        found: object = _yaml.safe_load(data)
    except (_yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{what} is no YAML: {error}") from None
    except RecursionError:
        raise UsageError(f"{what} is nested too deeply") from None
    if not isinstance(found, dict):
        raise UsageError(f"{what} is no mapping of fields")
    return cast("Mapping[str, object]", found)
