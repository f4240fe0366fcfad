"""What PostgreSQL says when it takes no connection, and what of it is passed on."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import StoreBusy

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")
from headrace.storage.postgres import PARTS, PostgresDatabase  # noqa: E402  (needs the extra)

AT = 'connection failed: connection to server at "10.1.2.3", port 5432 failed: '


@pytest.mark.parametrize(
    ("said", "passed_on"),
    [
        ('FATAL:  password authentication failed for user "me"', "refuses the user or the password"),
        ("fe_sendauth: no password supplied", "refuses the user or the password"),
        ('FATAL:  role "me" does not exist', "has no such user or database"),
        ("Connection refused\n\tIs the server running on that host?", "is busy (it does not answer)"),
    ],
)
def test_refusals_are_told_from_silence(said: str, passed_on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError(AT + said)

    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(StoreBusy) as refused:
        PostgresDatabase("postgresql://me:secret@db/headrace", PARTS["LEDGER"]).query("SELECT 1")
    message = refused.value.message
    assert message.startswith(f"the ledger's PostgreSQL {passed_on}: ")
    assert not any(word in message for word in ("10.1.2.3", "me:", "secret", '"me"'))
