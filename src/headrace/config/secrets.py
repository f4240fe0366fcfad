"""Secrets by name: they are in no setting, no address and no message."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from headrace.errors import UsageError

HIDDEN = "***"
KeyOf = Callable[[str], str | None]
"""The key of the store by its name; None where there is none."""


def secret_of(
    name: str, where: str, key_of: KeyOf | None = None, environ: Mapping[str, str] | None = None
) -> str:
    """The secret of that name (env:VARIABLE, file:PATH, key:NAME). UsageError, which does not have it."""
    kind, _, rest = name.partition(":")
    found: str | None = None
    if kind == "env" and rest:
        found = (os.environ if environ is None else environ).get(rest)
        missing = f"the variable {rest} is not set"
    elif kind == "file" and rest:
        missing = f"the file {rest} cannot be read or is empty"
        try:
            found = Path(rest).expanduser().read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            found = None
    elif kind == "key" and rest:
        found = key_of(rest) if key_of is not None else None
        missing = f"the store has no key {rest}: headrace providers add {rest}"
    else:
        # What was given may be the secret itself: it is not repeated.
        raise UsageError(f"{where} names no secret: write env:VARIABLE, file:PATH or key:NAME")
    if not found:
        raise UsageError(f"{where}: {missing}")
    return found


def without(text: str, secrets: Iterable[str]) -> str:
    """`text` with every secret of four characters or more hidden."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, HIDDEN)
    return text
