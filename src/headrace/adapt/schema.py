"""The tables of what is collected, in a file of their own. A released migration never changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.storage.database import Database

ADAPT_MIGRATIONS: Mapping[str, Sequence[str]] = {
    "traffic": (
        """CREATE TABLE tasks (
            id TEXT PRIMARY KEY,
            key_group TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            template TEXT NOT NULL,
            tools TEXT NOT NULL,
            form TEXT NOT NULL,
            name TEXT NOT NULL,
            is_named INTEGER NOT NULL,
            created_s REAL NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE examples (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            reply_id TEXT NOT NULL UNIQUE,
            request_id TEXT NOT NULL,
            task TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
            key_name TEXT NOT NULL,
            at_s REAL NOT NULL,
            model TEXT NOT NULL,
            target TEXT NOT NULL,
            messages BLOB NOT NULL,
            question TEXT NOT NULL,
            question_digest BLOB NOT NULL,
            answer TEXT NOT NULL,
            outcome TEXT NOT NULL,
            was_repeated INTEGER NOT NULL,
            nano_usd INTEGER,
            first_token_s REAL,
            total_s REAL NOT NULL,
            prompt_tokens INTEGER NOT NULL,
            completion_tokens INTEGER NOT NULL,
            task_group INTEGER,
            encoder TEXT,
            vector BLOB
        )""",
        "CREATE INDEX examples_by_task ON examples (task, id)",
        "CREATE INDEX examples_by_key ON examples (key_name, id)",
        "CREATE INDEX examples_by_time ON examples (at_s)",
        "CREATE INDEX examples_by_question ON examples (task, question_digest)",
        """CREATE TABLE feedback (
            example INTEGER PRIMARY KEY REFERENCES examples (id) ON DELETE CASCADE,
            at_s REAL NOT NULL,
            key_name TEXT NOT NULL,
            score REAL,
            is_accepted INTEGER,
            correction TEXT
        )""",
        "CREATE INDEX feedback_by_key ON feedback (key_name, at_s)",
        """CREATE TABLE task_groups (
            task TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
            number INTEGER NOT NULL,
            name TEXT NOT NULL,
            size INTEGER NOT NULL,
            encoder TEXT NOT NULL,
            centroid BLOB NOT NULL,
            PRIMARY KEY (task, number)
        ) WITHOUT ROWID""",
        """CREATE TABLE dropped (reason TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID""",
    ),
    "students": (
        # A student goes with its task. What was decided about it stays, without any text of a user.
        """CREATE TABLE students (
            id TEXT PRIMARY KEY,
            task TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
            created_s REAL NOT NULL,
            state TEXT NOT NULL,
            encoder TEXT NOT NULL,
            last_example INTEGER NOT NULL,
            threshold REAL NOT NULL,
            model BLOB NOT NULL,
            pairs BLOB NOT NULL,
            card BLOB NOT NULL,
            share REAL NOT NULL DEFAULT 0,
            audit REAL NOT NULL DEFAULT 0,
            route TEXT NOT NULL DEFAULT '',
            promoted_s REAL
        )""",
        "CREATE INDEX students_by_task ON students (task, created_s)",
        """CREATE UNIQUE INDEX students_promoted ON students (task) WHERE state = 'promoted'""",
        """CREATE TABLE evidence (
            student TEXT NOT NULL REFERENCES students (id) ON DELETE CASCADE,
            example INTEGER NOT NULL,
            key_name TEXT NOT NULL,
            task_group INTEGER,
            difference INTEGER NOT NULL,
            is_answered INTEGER NOT NULL,
            PRIMARY KEY (student, example)
        ) WITHOUT ROWID""",
        """CREATE TABLE decisions (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            at_s REAL NOT NULL,
            task TEXT NOT NULL,
            student TEXT NOT NULL,
            what TEXT NOT NULL,
            who TEXT NOT NULL,
            detail TEXT NOT NULL
        )""",
    ),
    "trainings": (
        # How far the training of a task has come: it goes on from there after its process was killed.
        """CREATE TABLE trainings (
            task TEXT PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE,
            student TEXT NOT NULL,
            started_s REAL NOT NULL,
            updated_s REAL NOT NULL,
            stage TEXT NOT NULL,
            last_example INTEGER NOT NULL,
            data TEXT NOT NULL,
            rungs BLOB NOT NULL,
            steps INTEGER NOT NULL,
            weights BLOB
        ) WITHOUT ROWID""",
        """CREATE TABLE live_traffic (id INTEGER PRIMARY KEY CHECK (id = 1), at_s REAL NOT NULL)""",
    ),
    "alerts": (
        """CREATE TABLE alerts (
            id TEXT PRIMARY KEY,
            at_s REAL NOT NULL,
            kind TEXT NOT NULL,
            task TEXT NOT NULL,
            student TEXT NOT NULL,
            text TEXT NOT NULL,
            delivered_s REAL,
            attempts INTEGER NOT NULL,
            next_s REAL NOT NULL
        ) WITHOUT ROWID""",
    ),
    "retention": ("ALTER TABLE students ADD COLUMN oldest_s REAL",),  # of the questions that a student keeps
    "judge": (
        "ALTER TABLE tasks ADD COLUMN evaluator TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE students ADD COLUMN judge TEXT NOT NULL DEFAULT ''",
        # Numbers, which stay where examples go: whether a judge was asked, and what a person prefers.
        "ALTER TABLE evidence ADD COLUMN was_asked INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE evidence ADD COLUMN score REAL",
        "ALTER TABLE evidence ADD COLUMN person INTEGER",
        "ALTER TABLE evidence ADD COLUMN nano_usd INTEGER",
        """CREATE TABLE comparisons (
            student TEXT NOT NULL REFERENCES students (id) ON DELETE CASCADE,
            example INTEGER NOT NULL REFERENCES examples (id) ON DELETE CASCADE,
            place BLOB NOT NULL,
            at_s REAL NOT NULL,
            answer TEXT NOT NULL,
            verdict TEXT NOT NULL,
            nano_usd INTEGER NOT NULL,
            label TEXT,
            labeled_s REAL,
            labeled_by TEXT,
            PRIMARY KEY (student, example)
        ) WITHOUT ROWID""",
        "CREATE INDEX comparisons_by_example ON comparisons (example)",
        "CREATE INDEX comparisons_by_time ON comparisons (at_s)",
    ),
}


def adapt_file(store: Path) -> Path:
    """The file of what is collected, beside the store."""
    return store.with_name(f"{store.stem}-adapt.sqlite3")


def open_adapt(store: Path | None) -> Database:
    """The database beside a store; None: in memory."""
    return Database(None if store is None else adapt_file(store), ADAPT_MIGRATIONS)
