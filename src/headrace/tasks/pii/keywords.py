"""Keywords of `LLM.redact`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict

from headrace.tasks.pii.analyzer import THRESHOLD, Analyzer
from headrace.tasks.pii.custom import CustomRecognizer
from headrace.tasks.pii.redaction import Operators, Redactor


class RedactKeywords(TypedDict, total=False):
    """Those of `redact`."""

    entities: Collection[str] | None
    operators: Operators | None
    threshold: float
    allow_list: Collection[str]
    recognizers: Sequence[CustomRecognizer]
    vault: Mapping[str, str] | None


def redactor_of(keywords: RedactKeywords, *, with_model: bool) -> Redactor:
    """The redactor that keywords describe, beside a model or without; raises InvalidRequest."""
    analyzer = Analyzer(
        keywords.get("entities"),
        threshold=keywords.get("threshold", THRESHOLD),
        allow=keywords.get("allow_list", ()),
        custom=keywords.get("recognizers", ()),
        with_model=with_model,
    )
    return Redactor(analyzer, keywords.get("operators"), keywords.get("vault"))
