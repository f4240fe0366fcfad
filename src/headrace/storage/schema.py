"""The tables, as migrations in the order in which they run. A released migration never changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MIGRATIONS: Mapping[str, Sequence[str]] = {
    "keys": (
        "CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
        """CREATE TABLE keys (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL,
            digest BLOB NOT NULL UNIQUE,
            created_s INTEGER NOT NULL,
            revoked_s INTEGER,
            requests_per_minute INTEGER,
            tokens_per_minute INTEGER,
            concurrency INTEGER
        )""",
        "CREATE UNIQUE INDEX keys_in_use ON keys (name) WHERE revoked_s IS NULL",
    ),
    "request_log": (
        """CREATE TABLE request_log (
            id TEXT NOT NULL,
            arrived_s REAL NOT NULL,
            key_name TEXT,
            method TEXT NOT NULL,
            path TEXT NOT NULL,
            status INTEGER NOT NULL,
            model TEXT,
            prompt_tokens INTEGER,
            cached_tokens INTEGER,
            completion_tokens INTEGER,
            first_token_s REAL,
            total_s REAL NOT NULL,
            error TEXT,
            body BLOB
        )""",
        "CREATE INDEX request_log_by_time ON request_log (arrived_s)",
    ),
    "aliases": (
        """CREATE TABLE aliases (
            name TEXT PRIMARY KEY,
            target TEXT NOT NULL,
            created_s INTEGER NOT NULL,
            system TEXT,
            parameters TEXT NOT NULL,
            license TEXT
        )""",
    ),
    "responses": (
        """CREATE TABLE responses (
            id TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            status TEXT NOT NULL,
            previous_id TEXT,
            used_s REAL NOT NULL,
            alive_s REAL NOT NULL,
            size_bytes INTEGER NOT NULL,
            body BLOB NOT NULL
        )""",
        "CREATE INDEX responses_by_use ON responses (used_s)",
        """CREATE TABLE response_items (
            response_id TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
            is_output INTEGER NOT NULL,
            position INTEGER NOT NULL,
            id TEXT NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (response_id, is_output, position)
        ) WITHOUT ROWID""",
        "CREATE INDEX response_items_by_id ON response_items (id)",
        """CREATE TABLE response_events (
            response_id TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
            number INTEGER NOT NULL,
            data BLOB NOT NULL,
            PRIMARY KEY (response_id, number)
        ) WITHOUT ROWID""",
    ),
    "batches": (
        """CREATE TABLE files (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            owner TEXT NOT NULL,
            filename TEXT NOT NULL,
            purpose TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            created_s INTEGER NOT NULL,
            expires_s INTEGER,
            unfinished_of TEXT
        )""",
        "CREATE INDEX files_by_owner ON files (owner, number)",
        """CREATE TABLE file_parts (
            file INTEGER NOT NULL REFERENCES files ON DELETE CASCADE,
            place INTEGER NOT NULL,
            data BLOB NOT NULL,
            PRIMARY KEY (file, place)
        )""",
        """CREATE TABLE batches (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            owner TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            input_file_id TEXT NOT NULL,
            completion_window TEXT NOT NULL,
            metadata TEXT,
            files_expire_after_s INTEGER,
            status TEXT NOT NULL,
            outcome TEXT,
            created_s INTEGER NOT NULL,
            expires_s INTEGER NOT NULL,
            cancelling_s INTEGER,
            finalizing_s INTEGER,
            ended_s INTEGER,
            output_file_id TEXT,
            error_file_id TEXT,
            total INTEGER NOT NULL,
            completed INTEGER,
            failed INTEGER,
            usage TEXT
        )""",
        "CREATE INDEX batches_by_owner ON batches (owner, number)",
        """CREATE TABLE batch_lines (
            batch TEXT NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
            place INTEGER NOT NULL,
            custom_id TEXT,
            body BLOB,
            state INTEGER NOT NULL,
            reply BLOB,
            PRIMARY KEY (batch, place)
        )""",
        "CREATE INDEX batch_lines_by_state ON batch_lines (batch, state, place)",
    ),
    "scopes": (
        # Keys made before could do everything: now each needs the scopes that it is given.
        "ALTER TABLE keys ADD COLUMN scopes TEXT NOT NULL DEFAULT 'infer'",
        "ALTER TABLE keys ADD COLUMN priority INTEGER",
        "ALTER TABLE aliases ADD COLUMN owner TEXT",
    ),
    "provider_keys": (
        """CREATE TABLE provider_keys (
            provider TEXT PRIMARY KEY,
            sealed BLOB NOT NULL,
            sealed_by TEXT NOT NULL,
            created_s INTEGER NOT NULL
        )""",
    ),
}
