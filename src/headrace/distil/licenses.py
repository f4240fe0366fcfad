"""Whether what a teacher says may train another model, as far as its license tells."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from msgspec import Struct

from headrace.errors import HeadraceError

_FORBIDS = re.compile(
    r"llama-?2|llama-?3(?![.-]?[1-9])|cc-by(-nc)?-nd|no[-_ ]?train|no[-_ ]?distil|no[-_ ]?deriv|"
    r"research[-_]only|all rights reserved",
    re.IGNORECASE,
)
"""Llama 2 and 3.0 forbid to improve other models with what they say; ND allows no derivatives."""
_TERMS = ("openai.com", "anthropic.com", "googleapis.com", "x.ai", "mistral.ai", "cohere.com", "cohere.ai")
"""Providers whose terms forbid, or bound, models that compete with theirs."""


class TrainingForbidden(HeadraceError):
    """A teacher's license or terms do not allow to train on what it says."""

    remedy = "Choose another teacher, or pass --i-have-rights if its owner allows it to you."
    exit_code = 1


class Rights(Struct, frozen=True):
    """The licenses that the student's card carries on; what is not known."""

    license: str
    warning: str = ""


def check_rights(teacher: str, license: str | None, student_license: str | None, *, allowed: bool) -> Rights:
    """TrainingForbidden where the license, or the terms of the provider at an address, forbid it and the user
    did not say that it is `allowed`."""
    host = (urlsplit(teacher).hostname or "") if "://" in teacher else ""
    provider = next((name for name in _TERMS if host == name or host.endswith(f".{name}")), None)
    if not allowed and provider is not None:
        raise TrainingForbidden(
            f"the terms of {provider} restrict the training of models on what its models say"
        )
    if not allowed and license is not None and _FORBIDS.search(license):
        raise TrainingForbidden(
            f"the license of {teacher} is {license[:80]!r}, which does not allow to train other models on"
            " what it says"
        )
    said = license or "unknown"
    both = said if student_license in (None, said) else f"{student_license} (weights), {said} (teacher)"
    warning = "" if license is not None else f"{teacher} states no license: ask its owner whether you may"
    return Rights(f"{both}, allowed by --i-have-rights" if allowed else both, warning)
