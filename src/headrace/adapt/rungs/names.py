"""Under which names adapters of students are loaded; nothing here imports what they need."""

from __future__ import annotations

PREFIX = "adapt-s-"


def adapter_name(student: str) -> str:
    """Under which a student's adapter is loaded."""
    return f"adapt-{student}"


def is_of_student(model: str | None) -> bool:
    """Whether a name is that of a student's adapter."""
    return f":{PREFIX}" in (model or "")
