"""What is collected: examples of tasks, feedback on them, and the end of both."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from sqlite3 import Connection
from typing import Any, cast

import msgspec
from msgspec import Struct

from headrace.adapt.traffic.fingerprint import Fingerprint
from headrace.errors import InvalidRequest, StoreError
from headrace.inference.accounts import RateLimited
from headrace.storage.database import Database

LOG = logging.getLogger("headrace.adapt")
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


class Forgotten(Struct, frozen=True):
    """What was deleted: how many examples, and the students that had learned from them."""

    examples: int
    students: list[str]


class TaskRow(Struct, frozen=True, kw_only=True):
    """A task with what came in for it. `evaluator` is what a person has chosen, "" where nobody has."""

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
    evaluator: str = ""


_COLUMNS = tuple(name for name in Example.__struct_fields__ if name != "id")
_INSERT = (
    f"INSERT OR IGNORE INTO examples ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' for _ in _COLUMNS)})"
)


class ExampleStore:
    """Reads and writes the file. Every call may raise StoreError; not for the event loop."""

    def __init__(self, database: Database, usd_per_hour: float = 0.0) -> None:
        """`usd_per_hour` is the price of this machine, 0 where it has none."""
        self.database, self.usd_per_hour = database, usd_per_hour
        self._added = 0
        self.has_deleted = False

    def add(self, print_: Fingerprint, example: Example, *, retention_s: float, max_of_key: int) -> bool:
        """Keep an example: all of it or nothing. False where there are too many tasks."""
        with self.database.transaction() as connection:
            texts = (print_.template, ", ".join(print_.tools), print_.form)
            known = connection.execute(
                "SELECT template, tools, form FROM tasks WHERE id = ?", (print_.id,)
            ).fetchall()
            if known and known[0] != texts:  # it is of an earlier time, and was deleted since
                connection.execute(
                    "UPDATE tasks SET template = ?, tools = ?, form = ? WHERE id = ?", (*texts, print_.id)
                )
            if not known:
                [(count,)] = connection.execute("SELECT count(*) FROM tasks").fetchall()
                if count >= MAX_TASKS:
                    return False
                connection.execute(
                    "INSERT INTO tasks (id, key_group, endpoint, template, tools, form, name, is_named, "
                    "created_s) VALUES (?, ?, ?, ?, ?, ?, '', 0, ?)",
                    (
                        *(print_.id, print_.group, print_.endpoint),
                        *(*texts, example.at_s),
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

    def trim(self, before_s: float, max_of_key: int) -> int:
        """Delete what is older than that, and of each key all but the newest `max_of_key`; tasks without any
        example go with them, and the words that name groups. Of those that a person has named, or that have a
        student, what their programs have said goes. How many examples it was."""
        with self.database.transaction() as connection:
            gone = connection.execute("DELETE FROM examples WHERE at_s < ?", (before_s,)).rowcount
            for (key,) in connection.execute("SELECT DISTINCT key_name FROM examples").fetchall():
                gone += connection.execute(
                    "DELETE FROM examples WHERE key_name = ? AND id <= (SELECT id FROM examples "
                    "WHERE key_name = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
                    (key, key, max_of_key),
                ).rowcount
            connection.execute("DELETE FROM task_groups WHERE task NOT IN (SELECT task FROM examples)")
            connection.execute(
                "DELETE FROM tasks WHERE is_named = 0 AND id NOT IN (SELECT task FROM examples) "
                "AND id NOT IN (SELECT task FROM students)"
            )
            wiped = connection.execute(
                "UPDATE tasks SET template = '', tools = '', form = '', name = iif(is_named, name, '') "
                "WHERE template || tools || form != '' AND id NOT IN (SELECT task FROM examples)"
            ).rowcount
        self.has_deleted |= gone + wiped > 0
        return gone

    def rewrite(self, *, always: bool = False) -> None:
        """Overwrite what was deleted, wherever in the file it has been. While another process uses the file,
        or its disk is full, that is left to the next time."""
        if not (always or self.has_deleted):
            return
        try:
            self.database.rewrite()
            self.has_deleted = False
        except StoreError as error:
            self.has_deleted = True
            LOG.warning("what was deleted may still be found in the file's pages: %s", error.message)

    def count_dropped(self, reason: str, count: int = 1) -> None:
        """Note that requests were not kept, and why."""
        self.database.execute(
            "INSERT INTO dropped VALUES (?, ?) "
            "ON CONFLICT (reason) DO UPDATE SET count = count + excluded.count",
            (reason, count),
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
            example = self.example_of(reply_id, key_name, is_admin=is_admin, now_s=now_s)
            connection.execute(
                "INSERT OR REPLACE INTO feedback VALUES (?, ?, ?, ?, ?, ?)",
                (example, now_s, key_name, feedback.score, feedback.is_accepted, feedback.correction),
            )

    def example_of(self, reply_id: str, key_name: str, *, is_admin: bool, now_s: float) -> int:
        """The example that a key may give feedback on now. Raises as `give_feedback`."""
        sql = (
            "SELECT id, key_name FROM examples WHERE reply_id = ?1 OR request_id = ?1 "
            "ORDER BY id DESC LIMIT 1"
        )
        found = self.database.query(sql, (reply_id,)) if self.database.exists else []
        if not found or (found[0][1] != key_name and not is_admin):
            raise UnknownReply(f"no reply {reply_id!r:.100} of this key was collected", param="id")
        [(given,)] = self.database.query(
            "SELECT count(*) FROM feedback WHERE key_name = ? AND at_s > ?", (key_name, now_s - DAY_S)
        )
        if cast("int", given) >= FEEDBACK_PER_DAY:
            raise RateLimited(
                f"{FEEDBACK_PER_DAY:,} replies a day may get feedback from one key: try again tomorrow",
                retry_after_s=3600.0,
                reason="feedback",
            )
        return cast("int", found[0][0])

    def tasks(self) -> list[TaskRow]:
        """All tasks, those that cost or came most first."""
        if not self.database.exists:
            return []
        rows = self.database.query(
            """SELECT one.id, one.name, one.key_group, one.endpoint, one.template, one.tools, one.form,
            count(example.id), coalesce(sum(example.nano_usd), 0), coalesce(min(example.at_s), one.created_s),
            coalesce(max(example.at_s), one.created_s), one.evaluator
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

    def evaluate_by(self, task: str, evaluator: str) -> None:
        """Say what compares students of a task with the incumbent."""
        self.database.execute("UPDATE tasks SET evaluator = ? WHERE id = ?", (evaluator, task))

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

    def forget(self, key_name: str | None, reply_id: str | None = None) -> Forgotten:
        """Delete all that is kept of a key, of one reply, or with neither of all. Students that have learned
        from it go, too: what one of them took from whom cannot be told apart."""
        if not self.database.exists:
            return Forgotten(0, [])
        with self.database.transaction() as connection:
            where, values = "1", list[str]()
            if key_name is not None:
                where, values = "key_name = ?", [key_name]
            elif reply_id is not None:
                where, values = "reply_id = ? OR request_id = ?", [reply_id, reply_id]
            tasks = f"SELECT DISTINCT task FROM examples WHERE {where}"
            touched = {str(task) for (task,) in connection.execute(tasks, values)}
            if key_name is not None:
                touched |= _taught_by(connection, key_name)
                connection.execute("DELETE FROM feedback WHERE key_name = ?", (key_name,))
            gone = connection.execute(f"DELETE FROM examples WHERE {where}", values).rowcount
            if key_name is None and reply_id is None:
                touched |= {str(task) for (task,) in connection.execute("SELECT id FROM tasks")}
                connection.execute("DELETE FROM dropped")
            students = _retired(connection, touched)
            if key_name is not None:
                connection.execute("DELETE FROM evidence WHERE key_name = ?", (key_name,))
        self.rewrite(always=True)
        return Forgotten(gone, students)


def _taught_by(connection: Connection, key_name: str) -> set[str]:
    """Tasks with a student that has learned from a key, or whose examples it has corrected: also where its
    own examples are gone by now; and tasks of its own without any example."""
    rows = connection.execute("SELECT task, card FROM students").fetchall()
    found = {str(task) for task, card in rows if key_name in msgspec.msgpack.decode(card)["keys"]}
    rows = connection.execute(
        "SELECT DISTINCT one.task FROM feedback said JOIN examples one ON one.id = said.example "
        "WHERE said.key_name = ?",
        (key_name,),
    ).fetchall()
    rows += connection.execute(
        "SELECT id FROM tasks WHERE key_group = ? AND id NOT IN (SELECT task FROM examples)",
        (f"key {key_name}",),
    ).fetchall()
    return found | {str(task) for (task,) in rows}


def _retired(connection: Connection, tasks: Collection[str]) -> list[str]:
    """Delete what was made of the examples of tasks, and tasks without any; the students that they had. It
    goes into the record of decisions. Names that nobody has given are words of the examples."""
    marks, values = ", ".join("?" for _ in tasks), list(tasks)
    rows = connection.execute(f"SELECT id, task FROM students WHERE task IN ({marks}) ORDER BY 1", values)
    students = [(str(id), str(task)) for id, task in rows]
    connection.executemany(
        "INSERT INTO decisions (at_s, task, student, what, who, detail) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (time.time(), task, id, "forgotten", "headrace", "what it has learned from was deleted")
            for id, task in students
        ],
    )
    for table in ("task_groups", "students", "trainings", "alerts"):
        connection.execute(f"DELETE FROM {table} WHERE task IN ({marks})", values)
    connection.execute(
        f"DELETE FROM tasks WHERE id IN ({marks}) AND id NOT IN (SELECT task FROM examples)", values
    )
    connection.execute(f"UPDATE tasks SET name = '' WHERE is_named = 0 AND id IN ({marks})", values)
    return [id for id, _ in students]
