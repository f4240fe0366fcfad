"""The gate of a cascade: a certified threshold with its evidence, and what audits have found since.

The evidence is kept with the certificate, and the certificate is computed again from it when it is read: a
threshold that was edited does not pass. Models that are not those of the certificate make it void.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from headrace.config.providers import CompareName, RemoteModelSettings, ScoreName
from headrace.errors import InvalidRequest
from headrace.gateway.certificate import Certificate, certify, least_examples, thresholds_of
from headrace.gateway.drift import DriftAlarm
from headrace.gateway.routes import LocalTarget, Target
from headrace.storage.database import Database
from headrace.struct_types import thread_safe

SCORED = 0.2
"""Part of the pairs whose scores choose the thresholds. Their labels are not looked at."""


class Pair(Struct, frozen=True, kw_only=True):
    """One calibrated request: the score of the small answer, and whether that is wrong."""

    score: float
    is_wrong: bool


class Calibration(Struct, frozen=True, kw_only=True):
    """What a certificate holds for. `small` and `large` say which models were asked. `digest` is that of all
    other fields."""

    route: str
    task: str
    score: ScoreName
    compare: CompareName
    small: str
    large: str
    created: str
    thresholds: tuple[float, ...]
    pairs: tuple[Pair, ...]
    certificate: Certificate
    digest: str = ""


class Gate(Struct, frozen=True):
    """What decides for one request. `closed`: why no small answer may be accepted, "" where it may."""

    calibration: Calibration | None
    closed: str = ""
    audited: int = 0
    wrong: int = 0


def identity(target: Target, fingerprint: str | None = None) -> str:
    """What tells models apart: the weights of this machine's, where they are known, and the provider's
    address and name of the others'."""
    if isinstance(target, LocalTarget):
        return f"local {target.name} {fingerprint or ''}".rstrip()
    return f"{target.provider.name} {target.provider.base_url} {target.model}"


def agrees(certified: str, found: str) -> bool:
    """Whether a model is the certified one. Weights count where both know them."""
    if certified.startswith("local ") and found.startswith("local "):
        one, other = certified.split(" "), found.split(" ")
        return one[: min(len(one), len(other))] == other[: min(len(one), len(other))]
    return certified == found


def calibrate(
    pairs: Sequence[Pair],
    *,
    route: str,
    settings: RemoteModelSettings,
    task: str,
    small: str,
    large: str,
    risk: float,
    confidence: float = 0.95,
    threshold: float | None = None,
) -> Calibration:
    """A certificate from pairs. InvalidRequest where they certify nothing, or a score is no number.

    A `threshold` that was chosen before needs no pairs to choose one."""
    if not all(math.isfinite(one.score) for one in pairs):
        raise InvalidRequest("a pair has a score that is no finite number: leave it out", param="pairs")
    order: list[int] = np.random.default_rng(0).permutation(len(pairs)).tolist()
    cut = int(len(pairs) * SCORED) if threshold is None else 0
    known = tuple(pairs[place] for place in order[cut:])
    least = least_examples(risk, confidence)
    if (cut < 1 and threshold is None) or len(known) < least:
        raise InvalidRequest(
            f"{len(pairs):,} pairs are too few: {least:,} right answers certify a risk of {risk:g}, and a "
            f"fifth of the pairs chooses the thresholds: give {math.ceil(least / (1 - SCORED)) + 1:,}",
            param="pairs",
        )
    if threshold is None:
        scores = [pairs[place].score for place in order[:cut]]
        thresholds = tuple(thresholds_of(scores, len(known), risk=risk, confidence=confidence))
    else:
        thresholds = (threshold,)
    found = _certified(known, thresholds, risk, confidence)
    if found is None:
        wrong = sum(one.is_wrong for one in known)
        raise InvalidRequest(
            f"nothing is certified: of {len(known):,} small answers {wrong:,} are wrong, also among "
            "those with the best scores: allow more risk, give more pairs, or use another score",
            param="risk",
        )
    made = Calibration(
        route=route,
        task=task,
        score=settings.score,
        compare=settings.compare,
        small=small,
        large=large,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        thresholds=thresholds,
        pairs=known,
        certificate=found,
    )
    return replace(made, digest=_digest(made))


def _certified(
    pairs: tuple[Pair, ...], thresholds: tuple[float, ...], risk: float, confidence: float
) -> Certificate | None:
    return certify(
        [one.score for one in pairs],
        [one.is_wrong for one in pairs],
        thresholds,
        risk=risk,
        confidence=confidence,
    )


def _digest(one: Calibration) -> str:
    return hashlib.sha256(msgspec.json.encode(replace(one, digest=""))).hexdigest()


def read_calibration(data: bytes) -> Calibration:
    """A calibration as it was kept. InvalidRequest where it is not what its evidence gives."""
    try:
        found = msgspec.json.decode(data, type=thread_safe(Calibration))
        again = _certified(
            found.pairs, found.thresholds, found.certificate.risk, found.certificate.confidence
        )
    except (msgspec.MsgspecError, InvalidRequest) as error:
        raise InvalidRequest(f"its certificate cannot be read: {error}", param="certificate") from None
    if again != found.certificate or found.digest != _digest(found):
        raise InvalidRequest("its certificate is not what its evidence gives", param="certificate")
    return found


class GateStore:
    """Certificates and audits of routes, in the store. Its calls read and write files: not for the loop."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, calibration: Calibration) -> None:
        """Open the gate of a route with a new certificate; audits begin again."""
        self._database.execute(
            "INSERT OR REPLACE INTO route_gates (route, calibration, audited, wrong, is_closed) "
            "VALUES (?, ?, 0, 0, 0)",
            (calibration.route, msgspec.json.encode(calibration)),
        )

    def remove(self, route: str) -> bool:
        """Take a certificate away; whether there was one."""
        return self._database.execute("DELETE FROM route_gates WHERE route = ?", (route,)) > 0

    def read(self, route: str) -> Gate:
        """The gate of a route."""
        rows: list[tuple[bytes, int, int, int]] = []
        if self._database.exists:
            rows = self._database.query(  # type: ignore[assignment]
                "SELECT calibration, audited, wrong, is_closed FROM route_gates WHERE route = ?", (route,)
            )
        if not rows:
            return Gate(None, "it has no certificate: `headrace route calibrate` makes one")
        data, audited, wrong, is_closed = rows[0]
        try:
            found = read_calibration(data)
        except InvalidRequest as error:
            return Gate(None, f"{error.message}: calibrate it again")
        closed = ""
        if is_closed:
            closed = (
                f"audits found {wrong:,} of {audited:,} small answers wrong, more than the certified "
                f"{found.certificate.risk:.1%}: calibrate it again"
            )
        return Gate(found, closed, audited, wrong)

    def audit(self, route: str, digest: str, is_wrong: bool) -> bool:
        """Count an audited answer of that certificate; whether the gate is closed. Several processes may
        count."""
        with self._database.transaction() as connection:
            row: tuple[bytes, int, int, int] | None = connection.execute(
                "SELECT calibration, audited, wrong, is_closed FROM route_gates WHERE route = ?", (route,)
            ).fetchone()
            found = None if row is None else msgspec.json.decode(row[0], type=thread_safe(Calibration))
            if row is None or found is None or found.digest != digest:  # it was calibrated anew meanwhile
                return False
            alarm = DriftAlarm(found.certificate.risk)
            alarm.audited, alarm.wrong = row[1], row[2]
            is_closed = bool(alarm.add(is_wrong) or row[3])
            connection.execute(
                "UPDATE route_gates SET audited = ?, wrong = ?, is_closed = ? WHERE route = ?",
                (alarm.audited, alarm.wrong, int(is_closed), route),
            )
        return is_closed


def problem_of(gate: Gate, settings: RemoteModelSettings, small: Target, large: Target) -> str:
    """Why a gate is closed for these models and settings; "" where it is open."""
    found = gate.calibration
    if gate.closed or found is None:
        return gate.closed
    if not agrees(found.small, identity(small)) or not agrees(found.large, identity(large)):
        return "its certificate holds for other models: calibrate it again"
    if (found.score, found.compare) != (settings.score, settings.compare):
        return "its certificate holds for another score or comparison: calibrate it again"
    return ""
