"""Under which names students that are models or adapters are loaded; nothing here imports what they need."""

from __future__ import annotations

from headrace.inference.adapted_engine import adapted_name

PREFIX = "adapt-s-"


def adapter_name(student: str) -> str:
    """Under which a student's adapter or model is loaded."""
    return f"adapt-{student}"


def student_model(base: str, student: str) -> str:
    """What a student is asked by: the adapter of its base, or a model of its own."""
    return adapted_name(base, adapter_name(student)) if base else adapter_name(student)


def is_of_student(model: str | None) -> bool:
    """Whether a name is that of a student's adapter or model."""
    return f":{PREFIX}" in f":{model}"
