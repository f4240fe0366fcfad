"""Lines of batches that wait for batches of providers: what was sent as which job, and what came back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import cast

from msgspec import Struct

from headrace.storage.batches import Line, LineState
from headrace.storage.sql_store import Row, SqlStore

NEW, CREATING, RUNNING, ENDED = "new", "creating", "running", "ended"


class ProviderJob(Struct, frozen=True):
    """A batch at a provider. `creating`: it may be there already, the reply was not seen."""

    id: str
    batch: str
    target: str
    path: str
    state: str
    upload_id: str
    remote_id: str
    created_s: int


class WaitingLine(Struct, frozen=True):
    """A line that waits, or that has its answer (`status` is not None). `asked` is encoded."""

    place: int
    asked: bytes
    rounds: int
    status: int | None = None
    answer: bytes | None = None


_JOB = ", ".join(ProviderJob.__struct_fields__)


class ProviderLines:
    """The jobs and waiting lines in a database."""

    def __init__(self, database: SqlStore) -> None:
        self._database = database

    def find(self, batch: str, place: int) -> WaitingLine | None:
        """What is kept of a line."""
        rows = self._database.query(
            "SELECT place, asked, rounds, status, answer FROM provider_lines WHERE batch = ? AND place = ?",
            (batch, place),
        )
        return WaitingLine(*rows[0]) if rows else None  # type: ignore[arg-type]

    def wait(self, batch: str, place: int, *, target: str, path: str, asked: bytes, size: int) -> None:
        """A line waits; of one that has waited before another round begins."""
        with self._database.transaction():
            self._database.execute(
                """INSERT INTO provider_lines (batch, place, job, target, path, asked, size_bytes, rounds)
                VALUES (?, ?, '', ?, ?, ?, ?, 1) ON CONFLICT (batch, place) DO UPDATE SET job = '',
                target = excluded.target, path = excluded.path, asked = excluded.asked,
                size_bytes = excluded.size_bytes, rounds = provider_lines.rounds + 1, status = NULL,
                answer = NULL""",
                (batch, place, target, path, asked, size),
            )
            self._database.execute(
                "UPDATE batch_lines SET state = ? WHERE batch = ? AND place = ? AND state = 0",
                (int(LineState.SENT), batch, place),
            )

    def forget(self, batch: str, place: int) -> None:
        """Forget the answer of a line, but not how often it was asked."""
        self._database.execute(
            "UPDATE provider_lines SET status = NULL, answer = NULL, asked = ? WHERE batch = ? AND place = ?",
            (b"", batch, place),
        )

    def unsent(self, batch: str) -> list[tuple[str, str, int, int]]:
        """(target, path, place, bytes) of the lines that are in no job, by target and path."""
        rows = self._database.query(
            "SELECT target, path, place, size_bytes FROM provider_lines "
            "WHERE batch = ? AND job = '' AND status IS NULL AND length(asked) > 0 "
            "ORDER BY target, path, place",
            (batch,),
        )
        return cast("list[tuple[str, str, int, int]]", rows)

    def add_job(self, job: str, batch: str, target: str, path: str, places: Sequence[int]) -> None:
        """Put lines into a new job."""
        with self._database.transaction():
            self._database.execute(
                f"INSERT INTO provider_jobs ({_JOB}) VALUES (?, ?, ?, ?, ?, '', '', ?)",
                (job, batch, target, path, NEW, int(time.time())),
            )
            self._database.execute_many(
                "UPDATE provider_lines SET job = ? WHERE batch = ? AND place = ?",
                [(job, batch, place) for place in places],
            )

    def update(self, job: str, state: str, *, upload_id: str = "", remote_id: str = "") -> None:
        """What is known of a job now."""
        self._database.execute(
            """UPDATE provider_jobs SET state = ?, upload_id = coalesce(nullif(?, ''), upload_id),
            remote_id = coalesce(nullif(?, ''), remote_id) WHERE id = ?""",
            (state, upload_id, remote_id, job),
        )

    def jobs(self, batch: str) -> list[ProviderJob]:
        """The jobs of a batch that have not ended, oldest first."""
        rows = self._database.query(
            f"SELECT {_JOB} FROM provider_jobs WHERE batch = ? AND state != ? ORDER BY created_s, id",
            (batch, ENDED),
        )
        return [ProviderJob(*row) for row in rows]  # type: ignore[arg-type]

    def known_ids(self) -> set[str]:
        """The providers' ids of all jobs."""
        rows = self._database.query("SELECT remote_id FROM provider_jobs WHERE remote_id != ''")
        return {str(row[0]) for row in rows}

    def lines(self, job: ProviderJob) -> list[WaitingLine]:
        """The lines of a job that have no answer."""
        return _waiting(
            self._database.query(
                "SELECT place, asked, rounds, status, answer FROM provider_lines "
                "WHERE batch = ? AND job = ? AND status IS NULL ORDER BY place",
                (job.batch, job.id),
            )
        )

    def answer(self, job: ProviderJob, answers: Iterable[tuple[int, int, bytes]]) -> None:
        """(place, status, body) of lines of a job: these run again. The first answer of a line counts."""
        with self._database.transaction():
            for place, status, body in answers:
                if self._database.execute(
                    "UPDATE provider_lines SET status = ?, answer = ? "
                    "WHERE batch = ? AND place = ? AND job = ? AND status IS NULL",
                    (status, body, job.batch, place, job.id),
                ):
                    self._database.execute(
                        "UPDATE batch_lines SET state = 0 WHERE batch = ? AND place = ? AND state = ?",
                        (job.batch, place, int(LineState.SENT)),
                    )

    def end(self, job: ProviderJob) -> int:
        """A job has ended: its lines without an answer have none. How many those are."""
        with self._database.transaction():
            left = [(line.place, 0, b"") for line in self.lines(job)]
            self.answer(job, left)
            self.update(job.id, ENDED)
        return len(left)

    def uncollected(self, batch: str) -> list[WaitingLine]:
        """The lines of a batch that are in no job."""
        return _waiting(
            self._database.query(
                "SELECT place, asked, rounds, status, answer FROM provider_lines "
                "WHERE batch = ? AND job = '' AND status IS NULL AND length(asked) > 0 ORDER BY place",
                (batch,),
            )
        )

    def unanswered(self, batch: str) -> list[WaitingLine]:
        """The lines of a batch that wait and have no answer."""
        return _waiting(
            self._database.query(
                "SELECT place, asked, rounds, status, answer FROM provider_lines "
                "WHERE batch = ? AND coalesce(status, 0) = 0 AND length(asked) > 0",
                (batch,),
            )
        )

    def answered(self, batch: str) -> list[Line]:
        """The lines of a batch that have not run to their end although there is an answer."""
        rows = self._database.query(
            """SELECT l.place, l.custom_id, l.body FROM batch_lines l JOIN provider_lines p
            ON p.batch = l.batch AND p.place = l.place
            WHERE l.batch = ? AND l.state = 0 AND p.status > 0 ORDER BY l.place""",
            (batch,),
        )
        return [Line(*row) for row in rows]  # type: ignore[arg-type]


def _waiting(rows: Iterable[Row]) -> list[WaitingLine]:
    return [WaitingLine(*row) for row in rows]  # type: ignore[arg-type]
