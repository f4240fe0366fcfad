"""`guard` of a body: the guards that are named."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

GuardNames = Annotated[str | list[str] | None, Meta(description="Names of configured guards.")]


def guard_names(given: str | list[str] | None) -> tuple[str, ...]:
    """One or several as several."""
    return (given,) if isinstance(given, str) else tuple(given or ())
