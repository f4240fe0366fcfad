"""What a person should know of: a student is ready, one was rolled back, a task's traffic has changed.

Each is told once: to the log, and to the webhook of the settings."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import os
import time
from typing import Literal

import aiohttp
import msgspec
from msgspec import Struct

from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import HeadraceError, UsageError
from headrace.storage.database import Database

LOG = logging.getLogger("headrace.adapt")
AlertKind = Literal["ready", "inferior", "promoted", "rolled_back", "drift"]
MAX_ATTEMPTS = 8
"""After which a webhook is given up: about an hour and a half."""
FIRST_WAIT_S = 20.0
TIMEOUT_S = 10.0
MAX_KEPT = 1000
"""Alerts; the oldest are deleted."""


class Alert(Struct, frozen=True, kw_only=True):
    """An alert. `delivered_s` is when the webhook has taken it; `attempts` how often it was tried."""

    id: str
    at_s: float
    kind: AlertKind
    task: str
    student: str
    text: str
    delivered_s: float | None
    attempts: int


_COLUMNS = ", ".join(Alert.__struct_fields__)


def raise_alert(
    database: Database, kind: AlertKind, task: str, student: str, text: str, about: str = ""
) -> bool:
    """Keep an alert and log it, unless it is known; `about` tells alerts of one kind and student apart."""
    name = hashlib.sha256(f"{kind} {task} {student} {about}".encode()).hexdigest()[:24]
    with database.transaction() as connection:
        is_new = connection.execute(
            "INSERT OR IGNORE INTO alerts (id, at_s, kind, task, student, text, attempts, next_s) "
            "VALUES (?, ?, ?, ?, ?, ?, 0, 0)",
            (f"alert_{name}", time.time(), kind, task, student, text),
        ).rowcount
        connection.execute(
            "DELETE FROM alerts WHERE id IN (SELECT id FROM alerts ORDER BY at_s DESC LIMIT -1 OFFSET ?)",
            (MAX_KEPT,),
        )
    if is_new:
        LOG.warning("%s", text)
    return is_new > 0


def latest_alerts(database: Database, count: int = 20) -> list[Alert]:
    """The latest, newest first."""
    if not database.exists:
        return []
    rows = database.query(f"SELECT {_COLUMNS} FROM alerts ORDER BY at_s DESC, id LIMIT ?", (count,))
    return [Alert(**dict(zip(Alert.__struct_fields__, row, strict=True))) for row in rows]  # type: ignore[arg-type]


def plain_alerts(database: Database, before_s: float) -> int:
    """Take the texts of alerts that were raised before that and name tasks by words of their examples: of
    students that are ready. How many it were. That they were raised stays known: nobody is told again."""
    plain = "kind || ': student ' || student || ' of task ' || task"
    sql = f"UPDATE alerts SET text = {plain} WHERE kind = 'ready' AND at_s < ? AND text != {plain}"
    return database.execute(sql, (before_s,))


class Webhook:
    """Sends alerts to the URL of the settings, and to no other: redirects are not followed. Bodies are signed
    as Standard Webhooks has it. Lives on the event loop; one `deliver` at a time."""

    def __init__(self, database: Database, settings: AdaptSettings) -> None:
        self._database, self._url = database, settings.webhook
        variable = settings.webhook_secret_env or ""
        self._secret = os.environ.get(variable, "").encode()
        if self._url is not None and not self._secret:
            raise UsageError(
                f"adapt.webhook_secret_env names {variable!r}, which is not set: alerts are not sent unsigned"
            )

    async def deliver(self) -> None:
        """Send what is due. What fails is tried again later, each time after twice the time."""
        if self._url is None:
            return
        due = await asyncio.to_thread(self._due)
        if not due:
            return
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            for one in due:
                is_taken = await self._send(session, self._url, one)
                await asyncio.to_thread(self._note, one, is_taken)

    async def _send(self, session: aiohttp.ClientSession, url: str, one: Alert) -> bool:
        body = msgspec.json.encode(
            {"id": one.id, "type": f"adapt.{one.kind}", "created_at": int(one.at_s), "data": _data(one)}
        )
        headers = {"content-type": "application/json", **signed(self._secret, one.id, time.time(), body)}
        try:
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as reply:
                return 200 <= reply.status < 300
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            LOG.info("the webhook did not take %s: %r", one.id, error)
            return False

    def _due(self) -> list[Alert]:
        if not self._database.exists:
            return []
        rows = self._database.query(
            f"SELECT {_COLUMNS} FROM alerts WHERE delivered_s IS NULL AND attempts < ? AND next_s <= ? "
            "ORDER BY at_s LIMIT 10",
            (MAX_ATTEMPTS, time.time()),
        )
        names = Alert.__struct_fields__
        return [Alert(**dict(zip(names, row, strict=True))) for row in rows]  # type: ignore[arg-type]

    def _note(self, one: Alert, is_taken: bool) -> None:
        now_s = time.time()
        wait_s = FIRST_WAIT_S * 2.0**one.attempts
        self._database.execute(
            "UPDATE alerts SET attempts = attempts + 1, delivered_s = ?, next_s = ? WHERE id = ?",
            (now_s if is_taken else None, now_s + wait_s, one.id),
        )
        if not is_taken and one.attempts + 1 >= MAX_ATTEMPTS:
            LOG.warning("the webhook took %s in none of %d attempts: it is given up", one.id, MAX_ATTEMPTS)


def signed(secret: bytes, name: str, at_s: float, body: bytes) -> dict[str, str]:
    """Headers by which a receiver knows that a body is ours, and the same one when it comes again."""
    headers = {"webhook-id": name, "webhook-timestamp": str(int(at_s))}
    if secret:
        text = f"{name}.{int(at_s)}.".encode() + body
        digest = base64.b64encode(hmac.digest(secret, text, "sha256")).decode()
        headers["webhook-signature"] = f"v1,{digest}"
    return headers


def _data(one: Alert) -> dict[str, str]:
    return {"task": one.task, "student": one.student, "text": one.text}


async def delivered(webhook: Webhook) -> None:
    """Deliver; an error of the store costs an attempt, not the loop."""
    try:
        await webhook.deliver()
    except HeadraceError as error:
        LOG.warning("alerts could not be sent: %s", error.message)
