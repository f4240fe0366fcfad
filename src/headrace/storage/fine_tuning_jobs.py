"""Fine-tuning jobs, with copies of their data, and their events; each belongs to one owner."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from headrace.storage.database import Database, Row

OPEN: Final = ("validating_files", "queued", "running")
"""The statuses of jobs that are to be computed; a job that is `paused` is not."""
ENDED: Final = ("succeeded", "failed", "cancelled")


class StoredJob(Struct, frozen=True):
    """A job. Times are seconds since 1970. `plan` is JSON that says how it trains."""

    id: str
    owner: str
    status: str
    model: str
    suffix: str | None
    training_file: str
    validation_file: str | None
    plan: str
    metadata: str | None
    created_s: int
    started_s: int | None
    finished_s: int | None
    trained_tokens: int | None
    fine_tuned_model: str | None
    result_file: str | None
    error: str | None


class StoredJobEvent(Struct, frozen=True):
    """Something that happened to a job. `data` is JSON."""

    id: str
    created_s: int
    level: str
    type: str
    message: str
    data: str | None


_COLUMNS = ", ".join(StoredJob.__struct_fields__)
_EVENT_COLUMNS = ", ".join(StoredJobEvent.__struct_fields__)


class FineTuningJobs:
    """The jobs in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        owner: str,
        *,
        model: str,
        suffix: str | None,
        training: tuple[str, bytes],
        validation: tuple[str, bytes] | None,
        plan: str,
        metadata: str | None,
    ) -> StoredJob:
        """A new job; `training` and `validation` are the ids of files and their content, of which the job
        keeps copies until it has ended."""
        job_id = f"ftjob-{uuid.uuid4().hex[:24]}"
        with self._database.transaction():
            self._database.execute(
                """INSERT INTO fine_tuning_jobs (id, owner, status, model, suffix, training_file, training,
                validation_file, validation, plan, metadata, created_s)
                VALUES (?, ?, 'validating_files', ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                (
                    *(job_id, owner, model, suffix, *training, *(validation or (None, None)), plan, metadata),
                    int(time.time()),
                ),
            )
            self.note(job_id, f"Created fine-tuning job: {job_id}")
        found = self.get(owner, job_id)
        assert found is not None
        return found

    def get(self, owner: str, job_id: str) -> StoredJob | None:
        """The owner's job with this id; None if there is none."""
        rows = self._database.query(
            f"SELECT {_COLUMNS} FROM fine_tuning_jobs WHERE owner = ? AND id = ?", (owner, job_id)
        )
        return _job(rows[0]) if rows else None

    def page(self, owner: str, *, after: str | None, limit: int) -> list[StoredJob]:
        """Up to `limit` of the owner's jobs, newest first, starting after `after`."""
        rows = self._database.query(
            f"""SELECT {_COLUMNS} FROM fine_tuning_jobs WHERE owner = ?1 AND (?2 IS NULL OR number <
            (SELECT number FROM fine_tuning_jobs WHERE id = ?2 AND owner = ?1))
            ORDER BY number DESC LIMIT ?3""",
            (owner, after, limit),
        )
        return [_job(row) for row in rows]

    def open_jobs(self, owner: str | None = None) -> list[StoredJob]:
        """Those that are to be computed, oldest first; of all owners, or of one."""
        rows = self._database.query(
            f"""SELECT {_COLUMNS} FROM fine_tuning_jobs WHERE status IN (?, ?, ?)
            AND (?4 IS NULL OR owner = ?4) ORDER BY number""",
            (*OPEN, owner),
        )
        return [_job(row) for row in rows]

    def succeeded(self) -> list[StoredJob]:
        """Those whose adapters are there, oldest first."""
        rows = self._database.query(
            f"SELECT {_COLUMNS} FROM fine_tuning_jobs WHERE status = 'succeeded' ORDER BY number"
        )
        return [_job(row) for row in rows]

    def ended(self, job_ids: Sequence[str]) -> list[StoredJob]:
        """Those of these jobs that have ended, of all owners."""
        rows = self._database.query(
            f"""SELECT {_COLUMNS} FROM fine_tuning_jobs WHERE id IN (SELECT value FROM json_each(?1))
            AND status IN (?2, ?3, ?4)""",
            (json.dumps(job_ids), *ENDED),
        )
        return [_job(row) for row in rows]

    def data(self, job_id: str) -> tuple[bytes, bytes | None]:
        """The copies of the training and of the validation file."""
        [(training, validation)] = self._database.query(
            "SELECT training, validation FROM fine_tuning_jobs WHERE id = ?", (job_id,)
        )
        assert isinstance(training, bytes) and not isinstance(validation, str | int | float)
        return training, validation

    def move(self, job_id: str, status: str, *, of: tuple[str, ...], note: str = "") -> bool:
        """Give a job another status if it has one of `of`; whether it had."""
        places = ", ".join("?" * len(of))
        now_s = int(time.time())
        with self._database.transaction():
            changed = self._database.execute(
                f"""UPDATE fine_tuning_jobs SET status = ?, started_s = coalesce(started_s, ?),
                finished_s = ? WHERE id = ? AND status IN ({places})""",
                (
                    status,
                    now_s if status == "running" else None,
                    now_s if status in ENDED else None,
                    job_id,
                    *of,
                ),
            )
            if changed:
                self._drop_data(job_id, status)
                self.note(job_id, note or f"The job is {status.replace('_', ' ')}")
        return bool(changed)

    def succeed(self, job_id: str, *, model: str, result_file: str, trained_tokens: int) -> bool:
        """A running job has made the adapter `model`; False where it is not running any more."""
        with self._database.transaction():
            self._database.execute(
                """UPDATE fine_tuning_jobs SET fine_tuned_model = ?, result_file = ?, trained_tokens = ?
                WHERE id = ? AND status = 'running'""",
                (model, result_file, trained_tokens, job_id),
            )
            return self.move(job_id, "succeeded", of=("running",), note=f"New fine-tuned model: {model}")

    def fail(self, job_id: str, code: str, message: str, param: str | None) -> None:
        """A job cannot be finished."""
        with self._database.transaction():
            self._database.execute(
                "UPDATE fine_tuning_jobs SET error = ? WHERE id = ? AND status IN (?, ?, ?)",
                (json.dumps({"code": code, "message": message, "param": param}), job_id, *OPEN),
            )
            if self.move(job_id, "failed", of=OPEN):
                self.note(job_id, message, level="error")

    def note(
        self,
        job_id: str,
        message: str,
        *,
        level: str = "info",
        kind: str = "message",
        data: Mapping[str, object] | None = None,
    ) -> None:
        """An event of a job."""
        event_id, kept = f"ftevent-{uuid.uuid4().hex[:24]}", None if data is None else json.dumps(data)
        self._database.execute(
            f"INSERT INTO fine_tuning_events (job, {_EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (job_id, event_id, int(time.time()), level, kind, message, kept),
        )

    def events(self, job_id: str, *, after: str | None, limit: int) -> list[StoredJobEvent]:
        """Up to `limit` events of a job, newest first, starting after `after`."""
        rows = self._database.query(
            f"""SELECT {_EVENT_COLUMNS} FROM fine_tuning_events WHERE job = ?1 AND (?2 IS NULL OR number <
            (SELECT number FROM fine_tuning_events WHERE id = ?2 AND job = ?1))
            ORDER BY number DESC LIMIT ?3""",
            (job_id, after, limit),
        )
        return [StoredJobEvent(*row) for row in rows]  # type: ignore[arg-type]

    def _drop_data(self, job_id: str, status: str) -> None:
        if status in ENDED:
            self._database.execute(
                "UPDATE fine_tuning_jobs SET training = NULL, validation = NULL WHERE id = ?", (job_id,)
            )


def _job(row: Row) -> StoredJob:
    return StoredJob(*row)  # type: ignore[arg-type]
