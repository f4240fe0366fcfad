"""What is collected: examples of tasks, feedback on them, and the end of both."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from headrace.adapt.fingerprint import Fingerprint
from headrace.errors import InvalidRequest
from headrace.inference.accounts import RateLimited
from headrace.storage.database import Database

REPEATED_S = 120.0
"""A question that comes again within that time was not answered well, or not at all."""
FEEDBACK_PER_DAY = 2000
"""Of each key."""
DAY_S = 86_400.0
TRIM_EVERY = 100
MAX_TASKS = 10_000
"""Beyond them requests of further tasks are not collected."""


class UnknownReply(InvalidRequest):
    """Feedback names a reply that was not collected, or another key's."""

    remedy = (
        "Send the id of a reply to a request of the same key, soon after it and before its retention ends."
    )
    status = 404
    code = "reply_not_found"


class Example(Struct, frozen=True, kw_only=True):
    """A request and its answer without personal data.

    `outcome` is "ok", or what went wrong: "error", "cancelled", "length", "invalid_json", "tool_failed".
    `was_repeated`: the same question came again soon after. `nano_usd` None: it has no known price.
    """

    id: int = 0
    reply_id: str
    request_id: str
    task: str
    key_name: str
    at_s: float
    model: str
    target: str
    messages: bytes
    question: str
    question_digest: bytes
    answer: str
    outcome: str
    was_repeated: bool = False
    nano_usd: int | None
    first_token_s: float | None
    total_s: float
    prompt_tokens: int
    completion_tokens: int


class Feedback(Struct, frozen=True, kw_only=True):
    """What a person or program says of a reply: a score from 0 to 1, whether the answer was taken as it is,
    the answer that would have been right."""

    score: float | None = None
    is_accepted: bool | None = None
    correction: str | None = None


class TaskRow(Struct, frozen=True, kw_only=True):
    """A task with what came in for it."""

    id: str
    name: str
    key_group: str
    endpoint: str
    template: str
    tools: str
    form: str
    examples: int
    nano_usd: int
    first_s: float
    last_s: float


_COLUMNS = tuple(name for name in Example.__struct_fields__ if name != "id")
_INSERT = (
    f"INSERT OR IGNORE INTO examples ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' for _ in _COLUMNS)})"
)


class ExampleStore:
    """Reads and writes the file. Every call may raise StoreError; not for the event loop."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._added = 0

    def add(self, print_: Fingerprint, example: Example, *, retention_s: float, max_of_key: int) -> bool:
        """Keep an example: all of it or nothing. False where there are too many tasks."""
        with self.database.transaction() as connection:
            known = connection.execute("SELECT 1 FROM tasks WHERE id = ?", (print_.id,)).fetchall()
            if not known:
                [(count,)] = connection.execute("SELECT count(*) FROM tasks").fetchall()
                if count >= MAX_TASKS:
                    return False
                connection.execute(
                    "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, '', 0, ?)",
                    (
                        *(print_.id, print_.group, print_.endpoint, print_.template),
                        *(", ".join(print_.tools), print_.form, example.at_s),
                    ),
                )
            connection.execute(
                "UPDATE examples SET was_repeated = 1 WHERE task = ? AND question_digest = ? "
                "AND key_name = ? AND at_s BETWEEN ? AND ?",
                (
                    *(print_.id, example.question_digest, example.key_name),
                    *(example.at_s - REPEATED_S, example.at_s),
                ),
            )
            connection.execute(_INSERT, [getattr(example, name) for name in _COLUMNS])
            self._added += 1
            if self._added % TRIM_EVERY == 1:
                self.trim(time.time() - retention_s, max_of_key)
        return True

    def trim(self, before_s: float, max_of_key: int) -> None:
        """Delete what is older than that, and of each key all but the newest `max_of_key`; tasks without any
        example go with them."""
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM examples WHERE at_s < ?", (before_s,))
            for (key,) in connection.execute("SELECT DISTINCT key_name FROM examples").fetchall():
                connection.execute(
                    "DELETE FROM examples WHERE key_name = ? AND id <= (SELECT id FROM examples "
                    "WHERE key_name = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
                    (key, key, max_of_key),
                )
            connection.execute(
                "DELETE FROM tasks WHERE is_named = 0 AND id NOT IN (SELECT task FROM examples) "
                "AND id NOT IN (SELECT task FROM students)"
            )

    def count_dropped(self, reason: str) -> None:
        """Note that a request was not kept, and why."""
        self.database.execute(
            "INSERT INTO dropped VALUES (?, 1) ON CONFLICT (reason) DO UPDATE SET count = count + 1",
            (reason,),
        )

    def dropped(self) -> Mapping[str, int]:
        """How many requests were not kept, by reason."""
        return dict(self.database.query("SELECT reason, count FROM dropped"))  # type: ignore[arg-type]

    def give_feedback(
        self, reply_id: str, key_name: str, feedback: Feedback, *, is_admin: bool, now_s: float
    ) -> None:
        """Keep feedback on an example; later feedback takes the place of earlier. Raises UnknownReply, and
        RateLimited where the key has given too much of it."""
        with self.database.transaction() as connection:
            found = connection.execute(
                "SELECT id, key_name FROM examples WHERE reply_id = ? OR request_id = ? "
                "ORDER BY id DESC LIMIT 1",
                (reply_id, reply_id),
            ).fetchall()
            if not found or (found[0][1] != key_name and not is_admin):
                raise UnknownReply(f"no reply {reply_id!r:.100} of this key was collected", param="id")
            [(given,)] = connection.execute(
                "SELECT count(*) FROM feedback WHERE key_name = ? AND at_s > ?", (key_name, now_s - DAY_S)
            ).fetchall()
            if given >= FEEDBACK_PER_DAY:
                raise RateLimited(
                    f"{FEEDBACK_PER_DAY:,} replies a day may get feedback from one key: try again tomorrow",
                    retry_after_s=3600.0,
                    reason="feedback",
                )
            connection.execute(
                "INSERT OR REPLACE INTO feedback VALUES (?, ?, ?, ?, ?, ?)",
                (found[0][0], now_s, key_name, feedback.score, feedback.is_accepted, feedback.correction),
            )

    def tasks(self) -> list[TaskRow]:
        """All tasks, those that cost or came most first."""
        if not self.database.exists:
            return []
        rows = self.database.query(
            """SELECT one.id, one.name, one.key_group, one.endpoint, one.template, one.tools, one.form,
            count(example.id), coalesce(sum(example.nano_usd), 0), coalesce(min(example.at_s), one.created_s),
            coalesce(max(example.at_s), one.created_s)
            FROM tasks one LEFT JOIN examples example ON example.task = one.id
            GROUP BY one.id ORDER BY 9 DESC, 8 DESC, 1"""
        )
        return [TaskRow(**dict(zip(TaskRow.__struct_fields__, row, strict=True))) for row in rows]  # type: ignore[arg-type]

    def task(self, word: str) -> TaskRow:
        """The task of that id, beginning of an id, or name; InvalidRequest names those that there are."""
        known = self.tasks()
        found = [one for one in known if word in (one.id, one.name)]
        found = found or [one for one in known if one.id.startswith(word) or one.id[2:].startswith(word)]
        if len(found) != 1:
            shown = ", ".join(one.id for one in known[:10]) or "none: there was no traffic yet"
            raise InvalidRequest(
                f"{len(found) or 'no'} tasks are named {word!r:.100}; there are {shown}", param="task"
            )
        return found[0]

    def rename(self, task: str, name: str) -> None:
        """Give a task a name that stays."""
        self.database.execute("UPDATE tasks SET name = ?, is_named = 1 WHERE id = ?", (name, task))

    def export(self, key_name: str | None = None) -> list[dict[str, Any]]:
        """All that is kept of a key, or of all, as it would be written to JSON."""
        if not self.database.exists:
            return []
        rows = self.database.query(
            f"""SELECT one.id, {", ".join(f"one.{name}" for name in _COLUMNS if name != "question_digest")},
            said.score, said.is_accepted, said.correction
            FROM examples one LEFT JOIN feedback said ON said.example = one.id
            WHERE ? IS NULL OR one.key_name = ? ORDER BY one.id""",
            (key_name, key_name),
        )
        names = ("id", *(name for name in _COLUMNS if name != "question_digest"))
        found: list[dict[str, Any]] = []
        for row in rows:
            line: dict[str, Any] = dict(zip((*names, "score", "is_accepted", "correction"), row, strict=True))
            line["messages"] = msgspec.json.decode(line["messages"])
            found.append(line)
        return found

    def forget(self, key_name: str | None, reply_id: str | None = None) -> int:
        """Delete all that is kept of a key, of one reply, or with neither of all; how many it was."""
        if not self.database.exists:
            return 0
        with self.database.transaction() as connection:
            where, values = "1", list[str]()
            if key_name is not None:
                where, values = "key_name = ?", [key_name]
            elif reply_id is not None:
                where, values = "reply_id = ? OR request_id = ?", [reply_id, reply_id]
            touched = [
                task
                for (task,) in connection.execute(
                    f"SELECT DISTINCT task FROM examples WHERE {where}", values
                ).fetchall()
            ]
            gone = connection.execute(f"DELETE FROM examples WHERE {where}", values).rowcount
            marks = ", ".join("?" for _ in touched)
            for table in ("task_groups", "students", "trainings", "alerts"):  # what was made of it
                connection.execute(f"DELETE FROM {table} WHERE task IN ({marks})", touched)
            connection.execute(
                f"DELETE FROM tasks WHERE id IN ({marks}) AND id NOT IN (SELECT task FROM examples)", touched
            )
        self.database.erase_deleted()
        return gone
