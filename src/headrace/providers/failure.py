"""What can go wrong at a target, in one taxonomy, and the typed errors that callers see of it."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import ContextLengthExceeded, DeadlineExceeded, HeadraceError, InvalidRequest, Overloaded
from headrace.inference.attempts import Billed

Phase = Literal["connect", "headers", "stream", "end"]
Kind = Literal[
    "refused",
    "timeout",
    "rate_limit",
    "overloaded",
    "server",
    "auth",
    "quota",
    "missing",
    "invalid",
    "context",
    "content",
    "malformed",
    "truncated",
]

MAX_RETRY_AFTER_S = 3600.0
MAX_MESSAGE = 500
LEAST_SECRET = 8
"""Shorter keys are placeholders such as "none", which are words of messages, too."""
_AGAIN = frozenset({"refused", "timeout", "rate_limit", "overloaded", "server", "malformed", "truncated"})
_ELSEWHERE = _AGAIN | {"auth", "quota", "missing", "context"}
_CLOSED = frozenset({"auth", "quota", "missing"})


class Failure(Struct, frozen=True, kw_only=True):
    """Why an attempt failed. `phase` is how far it came, `billed` whether the provider charges for it.

    `status` is the provider's, None where there was none. `message` is the provider's own or this side's,
    without secrets and line ends, at most MAX_MESSAGE characters. `param` is what an invalid request names.
    """

    phase: Phase
    kind: Kind
    message: str
    status: int | None = None
    retry_after_s: float | None = None
    billed: Billed = "no"
    param: str | None = None
    is_of_request: bool = False
    """It depends on what was asked, such as a schema or a short deadline: other requests may do well."""

    @property
    def may_succeed_again(self) -> bool:
        """Whether the same target may answer another attempt."""
        return self.kind in _AGAIN

    @property
    def may_succeed_elsewhere(self) -> bool:
        """Whether another target may answer."""
        return self.kind in _ELSEWHERE

    @property
    def is_permanent(self) -> bool:
        """Whether every request fails until someone changes the configuration or pays."""
        return self.kind in _CLOSED


class AttemptFailed(Exception):
    """An attempt at one target has failed. Never leaves the gateway: callers get `error_of`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class TargetFailed(HeadraceError):
    """A remote target could not answer: it failed, sent what is no valid reply, or refused its key."""

    remedy = (
        "Send the request again later; the message names the target and the cause. `headrace providers test "
        "NAME` checks a provider and its key."
    )
    status = 502
    code = "target_failed"


class TargetTimeout(DeadlineExceeded):
    """A remote target did not answer in time."""

    remedy = "Raise the timeouts of `[providers.NAME]` or the request's `deadline_s`, or add another target."
    status = 504
    code = "target_timeout"


class TargetBusy(Overloaded):
    """A remote target is overloaded, or its rate limit is used up."""

    remedy = "Wait for the seconds in `Retry-After`, or add another target to the model's `targets`."
    code = "target_busy"


class TargetRateLimited(TargetBusy):
    """The provider's rate limit for this server's key is used up."""

    remedy = "Wait for the seconds in `Retry-After`, or raise the limit of the provider's account."
    status = 429
    code = "target_rate_limit"
    kind = "rate_limit_error"


class TargetRefused(InvalidRequest):
    """A remote target calls the request invalid, or cannot honor a parameter of it."""

    remedy = (
        "Leave out or correct the parameter that the message names; `drop` in `[models.NAME]` turns refusals "
        "of parameters into warnings."
    )
    code = "target_refused"


class ContentFiltered(InvalidRequest):
    """A remote target's content filter has refused the request."""

    remedy = "Send something else, or to another model: the provider's filter does not let this pass."
    code = "content_filter"


class LoopDetected(InvalidRequest):
    """A request came back to a server that had sent it to a remote target."""

    remedy = "Change `base_url` of the provider that leads back to this server."
    status = 508
    code = "loop_detected"


def error_of(failure: Failure, target: str, *, attempts: int = 1) -> HeadraceError:
    """The error that a caller gets where `failure` was the last of `attempts` attempts."""
    times = "" if attempts == 1 else f" (the last of {attempts} attempts)"
    message = f"the target {target!r} {failure.message}{times}"
    wait_s = clamped_wait(failure.retry_after_s) or 1.0
    match failure.kind:
        case "timeout":
            return TargetTimeout(message)
        case "rate_limit":
            return TargetRateLimited(message, retry_after_s=wait_s, reason="target_rate_limit")
        case "overloaded" | "refused":
            return TargetBusy(message, retry_after_s=wait_s, reason="target")
        case "invalid":
            return TargetRefused(message, param=failure.param)
        case "context":
            return ContextLengthExceeded(message, param=failure.param)
        case "content":
            return ContentFiltered(message)
        case _:
            return TargetFailed(message)


def clamped_wait(seconds: float | None) -> float | None:
    """A wait as a provider asks for it, within 0 and MAX_RETRY_AFTER_S; None for what is no number."""
    if seconds is None or math.isnan(seconds) or seconds < 0:
        return None
    return min(seconds, MAX_RETRY_AFTER_S)


def without_secret(failure: Failure, secret: str | None) -> Failure:
    """A failure as others may see it: all texts in it are the provider's, who may repeat the key."""
    param = None if failure.param is None else shown(failure.param, secret)
    return replace(failure, message=shown(failure.message, secret), param=param)


def shown(text: str, secret: str | None = None) -> str:
    """A provider's text as it may be shown: on one line, short, without the key."""
    if secret and len(secret) >= LEAST_SECRET:
        text = text.replace(secret, "***")
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_MESSAGE]).split())
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
