"""API keys: hashed, revoked permanently; a store that had a key stays protected."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import InvalidRequest
from headrace.storage.aliases import Alias, Aliases
from headrace.storage.database import Database
from headrace.storage.keys import KeyLimits, Keys, digest_of
from headrace.storage.schema import MIGRATIONS


def test_the_file_does_not_hold_the_key(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    database = Database(path)
    keys = Keys(database)
    key = keys.add("alice", KeyLimits(60, None, 2))
    (stored,) = keys.all()
    assert (stored.name, stored.limits) == ("alice", KeyLimits(60, None, 2))
    assert stored.digest == digest_of(key.encode(), keys.pepper())
    assert len(key) >= 40
    database.close()
    for file in tmp_path.iterdir():
        assert key.encode() not in file.read_bytes()


def test_a_name_is_used_once_until_it_is_revoked() -> None:
    keys = Keys(Database(None))
    keys.add("a", KeyLimits())
    with pytest.raises(InvalidRequest, match="choose another name"):
        keys.add("a", KeyLimits())
    keys.revoke("a")
    assert keys.all() == [] and keys.ever()
    with pytest.raises(InvalidRequest, match="no key named 'a'"):
        keys.revoke("a")
    assert keys.add("a", KeyLimits())


def test_reading_creates_no_file(tmp_path: Path) -> None:
    keys = Keys(Database(tmp_path / "none.sqlite3"))
    assert keys.all() == [] and not keys.ever() and keys.version() == 0
    assert list(tmp_path.iterdir()) == []


def test_scopes_and_urgency_are_kept(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.sqlite3")
    keys = Keys(database)
    keys.add("a", KeyLimits())
    keys.add("b", KeyLimits(priority=-3), frozenset({"infer", "admin"}))
    assert [(key.scopes, key.limits.priority) for key in keys.all()] == [
        (frozenset({"infer"}), None),
        (frozenset({"infer", "admin"}), -3),
    ]
    database.execute("UPDATE keys SET scopes = 'infer,future' WHERE name = 'a'")
    assert keys.all()[0].scopes == {"infer"}
    database.close()


def test_keys_of_older_versions_keep_only_inference(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    older = {name: steps for name, steps in MIGRATIONS.items() if name != "scopes"}
    database = Database(path, older)
    database.execute("INSERT INTO keys (name, digest, created_s) VALUES ('old', x'01', 1)")
    database.execute("INSERT INTO aliases VALUES ('mine', 'model', 1, NULL, '{}', NULL)")
    database.close()
    database = Database(path)
    [key] = Keys(database).all()
    assert (key.name, key.scopes, key.limits) == ("old", {"infer"}, KeyLimits())
    assert Aliases(database).find("mine") == Alias(name="mine", target="model", created_s=1, owner=None)
    database.close()
