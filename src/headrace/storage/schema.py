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
    "ledger": (
        # An entry is written after its postings: then these must sum to zero, and no more can be added.
        # Nothing is ever changed or deleted.
        """CREATE TABLE ledger_postings (
            entry INTEGER NOT NULL REFERENCES ledger_entries (id) DEFERRABLE INITIALLY DEFERRED,
            line INTEGER NOT NULL,
            account TEXT NOT NULL,
            class TEXT NOT NULL,
            quantity INTEGER NOT NULL,
            nano_usd INTEGER NOT NULL,
            PRIMARY KEY (entry, line)
        ) WITHOUT ROWID""",
        """CREATE TABLE ledger_entries (
            id INTEGER PRIMARY KEY,
            kind TEXT NOT NULL,
            status TEXT NOT NULL,
            reason TEXT NOT NULL,
            day TEXT NOT NULL,
            started_s REAL NOT NULL,
            booked_s REAL NOT NULL,
            request_id TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            attempt_kind TEXT NOT NULL,
            key_name TEXT NOT NULL,
            route TEXT NOT NULL,
            target TEXT NOT NULL,
            provider TEXT NOT NULL,
            model TEXT NOT NULL,
            processing TEXT NOT NULL,
            outcome TEXT NOT NULL,
            billed TEXT NOT NULL,
            elapsed_s REAL NOT NULL,
            first_content_s REAL,
            nano_usd INTEGER NOT NULL,
            price_source TEXT NOT NULL,
            raw_usage BLOB NOT NULL,
            hold INTEGER NOT NULL,
            corrects INTEGER REFERENCES ledger_entries (id)
        )""",
        "CREATE UNIQUE INDEX ledger_attempts ON ledger_entries (request_id, attempt) WHERE kind = 'attempt'",
        "CREATE INDEX ledger_by_hold ON ledger_entries (hold) WHERE hold > 0",
        "CREATE INDEX ledger_by_day ON ledger_entries (day)",
        "CREATE INDEX ledger_by_corrected ON ledger_entries (corrects) WHERE corrects IS NOT NULL",
        """CREATE TRIGGER ledger_postings_closed BEFORE INSERT ON ledger_postings
            WHEN EXISTS (SELECT 1 FROM ledger_entries WHERE id = NEW.entry)
            BEGIN SELECT RAISE(ABORT, 'the entry is closed'); END""",
        """CREATE TRIGGER ledger_entries_once BEFORE INSERT ON ledger_entries
            WHEN EXISTS (SELECT 1 FROM ledger_entries WHERE id = NEW.id)
            BEGIN SELECT RAISE(ABORT, 'the entry is there'); END""",
        """CREATE TRIGGER ledger_entries_balanced AFTER INSERT ON ledger_entries
            WHEN (SELECT coalesce(sum(nano_usd), 0) FROM ledger_postings WHERE entry = NEW.id) != 0
            BEGIN SELECT RAISE(ABORT, 'the postings of the entry do not sum to zero'); END""",
        *(
            f"""CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table}
                BEGIN SELECT RAISE(ABORT, 'the ledger is only added to'); END"""
            for table in ("ledger_entries", "ledger_postings")
            for change in ("UPDATE", "DELETE")
        ),
        # What an entry counts for a budget, whose totals follow from that.
        """CREATE TABLE budget_charges (
            entry INTEGER NOT NULL REFERENCES ledger_entries (id),
            budget TEXT NOT NULL,
            period TEXT NOT NULL,
            nano_usd INTEGER NOT NULL,
            PRIMARY KEY (entry, budget, period)
        ) WITHOUT ROWID""",
        """CREATE TABLE budget_totals (
            budget TEXT NOT NULL,
            period TEXT NOT NULL,
            nano_usd INTEGER NOT NULL,
            PRIMARY KEY (budget, period)
        ) WITHOUT ROWID""",
        """CREATE TRIGGER budget_charges_add AFTER INSERT ON budget_charges BEGIN
            INSERT INTO budget_totals VALUES (NEW.budget, NEW.period, NEW.nano_usd)
            ON CONFLICT (budget, period) DO UPDATE SET nano_usd = nano_usd + excluded.nano_usd;
        END""",
        # Money set aside for attempts under way. `expires_s` is on the machine's clock since it booted.
        """CREATE TABLE holds (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            nano_usd INTEGER,
            created_s REAL NOT NULL,
            expires_s REAL NOT NULL,
            holder TEXT NOT NULL,
            request_id TEXT NOT NULL,
            key_name TEXT NOT NULL,
            route TEXT NOT NULL,
            target TEXT NOT NULL,
            provider TEXT NOT NULL,
            model TEXT NOT NULL,
            processing TEXT NOT NULL
        )""",
        """CREATE TABLE hold_shares (
            hold INTEGER NOT NULL REFERENCES holds (id) ON DELETE CASCADE,
            budget TEXT NOT NULL,
            period TEXT NOT NULL,
            nano_usd INTEGER NOT NULL,
            PRIMARY KEY (hold, budget, period)
        ) WITHOUT ROWID""",
        "CREATE INDEX hold_shares_by_budget ON hold_shares (budget, period, nano_usd)",
    ),
    "probes": (
        """CREATE TABLE probe_samples (
            id INTEGER PRIMARY KEY,
            at_s REAL NOT NULL,
            endpoint TEXT NOT NULL,
            kind TEXT NOT NULL,
            body BLOB NOT NULL
        )""",
        "CREATE INDEX probe_samples_by_time ON probe_samples (at_s)",
    ),
    "route_gates": (
        """CREATE TABLE route_gates (
            route TEXT PRIMARY KEY,
            calibration BLOB NOT NULL,
            audited INTEGER NOT NULL,
            wrong INTEGER NOT NULL,
            is_closed INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
    "request_store": (
        "ALTER TABLE request_log ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE request_log ADD COLUMN trace_id TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE request_log ADD COLUMN explain BLOB",
        "ALTER TABLE request_log ADD COLUMN size_bytes INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX request_log_by_owner ON request_log (owner)",
        "CREATE INDEX request_log_by_id ON request_log (id)",
    ),
    "agent_runs": (
        """CREATE TABLE agent_runs (
            id TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            used_s REAL NOT NULL,
            request BLOB NOT NULL
        )""",
        "CREATE INDEX agent_runs_by_use ON agent_runs (used_s)",
        """CREATE TABLE agent_steps (
            run_id TEXT NOT NULL REFERENCES agent_runs (id) ON DELETE CASCADE,
            name TEXT NOT NULL,
            body BLOB,
            PRIMARY KEY (run_id, name)
        ) WITHOUT ROWID""",
    ),
    "idempotent_replies": (
        """CREATE TABLE idempotent_replies (
            place BLOB PRIMARY KEY,
            created_s REAL NOT NULL,
            size_bytes INTEGER NOT NULL,
            reply BLOB NOT NULL
        )""",
        "CREATE INDEX idempotent_replies_by_time ON idempotent_replies (created_s, size_bytes)",
    ),
    "machine_time": (  # a request that goes on after a restart is not booked twice
        """CREATE INDEX ledger_machine ON ledger_entries (request_id)
            WHERE kind = 'machine' AND request_id != ''""",
    ),
    "mcp_tokens": (
        """CREATE TABLE mcp_tokens (
            server TEXT PRIMARY KEY,
            sealed BLOB NOT NULL,
            sealed_by TEXT NOT NULL,
            changed_s INTEGER NOT NULL
        )""",
    ),
    "provider_batches": (
        """CREATE TABLE provider_jobs (
            id TEXT PRIMARY KEY,
            batch TEXT NOT NULL,
            target TEXT NOT NULL,
            path TEXT NOT NULL,
            state TEXT NOT NULL,
            upload_id TEXT NOT NULL,
            remote_id TEXT NOT NULL,
            created_s INTEGER NOT NULL
        )""",
        "CREATE INDEX provider_jobs_by_batch ON provider_jobs (batch)",
        """CREATE TABLE provider_lines (
            batch TEXT NOT NULL,
            place INTEGER NOT NULL,
            job TEXT NOT NULL,
            target TEXT NOT NULL,
            path TEXT NOT NULL,
            asked BLOB NOT NULL,
            size_bytes INTEGER NOT NULL,
            rounds INTEGER NOT NULL,
            status INTEGER,
            answer BLOB,
            PRIMARY KEY (batch, place)
        ) WITHOUT ROWID""",
        "ALTER TABLE batches ADD COLUMN hops TEXT NOT NULL DEFAULT ''",
    ),
    "fine_tuning": (
        """CREATE TABLE fine_tuning_jobs (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            owner TEXT NOT NULL,
            status TEXT NOT NULL,
            model TEXT NOT NULL,
            suffix TEXT,
            training_file TEXT NOT NULL,
            validation_file TEXT,
            training BLOB,
            validation BLOB,
            plan TEXT NOT NULL,
            metadata TEXT,
            created_s INTEGER NOT NULL,
            started_s INTEGER,
            finished_s INTEGER,
            trained_tokens INTEGER,
            fine_tuned_model TEXT,
            result_file TEXT,
            error TEXT
        )""",
        """CREATE TABLE fine_tuning_events (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            job TEXT NOT NULL REFERENCES fine_tuning_jobs (id) ON DELETE CASCADE,
            created_s INTEGER NOT NULL,
            level TEXT NOT NULL,
            type TEXT NOT NULL,
            message TEXT NOT NULL,
            data TEXT
        )""",
        "CREATE INDEX fine_tuning_events_by_job ON fine_tuning_events (job, number)",
    ),
    "response_cancels": (  # which another server makes
        """CREATE TABLE response_cancels (
            response_id TEXT PRIMARY KEY REFERENCES responses (id) ON DELETE CASCADE
        ) WITHOUT ROWID""",
    ),
}
