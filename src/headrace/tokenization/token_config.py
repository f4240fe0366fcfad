"""The small JSON files beside a tokenizer, which say what its tokens are for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from headrace.errors import CorruptFile


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file, empty where there is no file. Raises CorruptFile for anything else."""
    if not path.is_file():
        return {}
    try:
        value: object = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path.parent.name}/{path.name} is not JSON ({error}): fetch it again") from error
    if not isinstance(value, dict):
        raise CorruptFile(f"{path.parent.name}/{path.name} holds no JSON object: fetch it again")
    return cast(dict[str, Any], value)


def token_text(entry: object) -> str | None:
    """Spelling of a token as the files write it: a string, or an object with `content`."""
    if isinstance(entry, dict):
        entry = cast(dict[str, object], entry).get("content")
    return entry if isinstance(entry, str) else None


def token_ids(config: dict[str, Any], key: str, owner: str) -> list[int]:
    """Token ids of an entry that is absent, null, one id, or a list of ids; `owner` names it in errors."""
    entry: object = config.get(key)
    entries = cast(list[object], entry) if isinstance(entry, list) else [] if entry is None else [entry]
    ids = [value for value in entries if isinstance(value, int) and value >= 0]
    if len(ids) != len(entries):
        raise CorruptFile(f"{owner}: {key} is {entry!r:.80}, expected a token id or a list of them")
    return ids
