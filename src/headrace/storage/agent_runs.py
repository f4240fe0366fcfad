"""Runs of agents, step by step, so that one that was interrupted goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.storage.sql_store import SqlStore

KEPT_S = 30 * 86_400.0


class AgentRuns:
    """The runs in a database. Each step has a name, and a body once it is done. `clock` returns wall-clock
    seconds."""

    def __init__(self, database: SqlStore, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock

    def begin(self, run_id: str, owner: str, request: bytes) -> bytes | None:
        """Keep a new run. The request of the owner's run of this id, where there is one; raises KeyError for
        another owner's."""
        now_s = self._clock()
        with self._database.transaction():
            found = self._database.query("SELECT owner, request FROM agent_runs WHERE id = ?", (run_id,))
            if found:
                [(known, kept)] = found
                if known != owner:
                    raise KeyError(run_id)
                assert isinstance(kept, bytes)
                self._database.execute("UPDATE agent_runs SET used_s = ? WHERE id = ?", (now_s, run_id))
                return kept
            self._database.execute("DELETE FROM agent_runs WHERE used_s < ?", (now_s - KEPT_S,))
            self._database.execute(
                "INSERT INTO agent_runs VALUES (?, ?, ?, ?)", (run_id, owner, now_s, request)
            )
        return None

    def request(self, run_id: str, owner: str) -> bytes | None:
        """The request of an owner's run."""
        rows = self._database.query(
            "SELECT request FROM agent_runs WHERE id = ? AND owner = ?", (run_id, owner)
        )
        return bytes(rows[0][0]) if rows and isinstance(rows[0][0], bytes) else None

    def steps(self, run_id: str) -> dict[str, bytes | None]:
        """The bodies of all steps of a run; None of those that were begun and not done."""
        rows = self._database.query("SELECT name, body FROM agent_steps WHERE run_id = ?", (run_id,))
        return {str(name): body if isinstance(body, bytes) else None for name, body in rows}

    def start(self, run_id: str, name: str) -> None:
        """A step begins."""
        self._database.execute(
            "INSERT INTO agent_steps VALUES (?, ?, NULL) ON CONFLICT DO NOTHING", (run_id, name)
        )

    def finish(self, run_id: str, name: str, body: bytes) -> None:
        """A step is done."""
        self._database.execute(
            "INSERT INTO agent_steps VALUES (?, ?, ?) "
            "ON CONFLICT (run_id, name) DO UPDATE SET body = excluded.body",
            (run_id, name, body),
        )
