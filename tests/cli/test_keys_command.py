"""`headrace keys`: created once, listed without the key, revoked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from invocation import Outcome

Inside = Callable[..., Outcome]


def test_a_key_is_shown_once(inside: Inside, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "store.sqlite3"))
    added = inside("keys", "add", "alice", "--key-rpm", "60", *store)
    assert added.code == 0, added.stderr
    key = added.stdout.strip()
    assert key.startswith("hr-")
    listed = inside("keys", "list", "--json", *store)
    (line,) = json.loads(listed.stdout)
    assert (line["name"], line["requests_per_minute"], line["concurrency"]) == ("alice", 60, None)
    assert key not in listed.stdout
    table = inside("keys", "list", *store).stdout
    assert "alice" in table and "60" in table
    assert inside("keys", "rm", "alice", *store).code == 0
    assert json.loads(inside("keys", "list", "--json", *store).stdout) == []


def test_wrong_use(inside: Inside, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "store.sqlite3"))
    nameless = inside("keys", "add", *store)
    assert (nameless.code, "needs a name" in nameless.stderr) == (2, True)
    unknown = inside("keys", "rm", "bob", *store)
    assert (unknown.code, "no key named 'bob'" in unknown.stderr) == (1, True)
    assert inside("keys", "frobnicate", *store).code == 2
    nowhere = inside("keys", "add", "a", "--fronts", "2", *store)
    assert (nowhere.code, "--fronts needs --ledger" in nowhere.stderr) == (2, True)


def test_scopes_of_a_key(inside: Inside, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "store.sqlite3"))
    inside("keys", "add", "plain", *store)
    assert inside("keys", "add", "ops", "--scope", "infer, admin", "--key-priority", "-5", *store).code == 0
    plain, ops = json.loads(inside("keys", "list", "--json", *store).stdout)
    assert (plain["scopes"], plain["priority"]) == (["infer"], None)
    assert (ops["scopes"], ops["priority"]) == (["admin", "infer"], -5)
    assert "admin,infer" in inside("keys", "list", *store).stdout
    wrong = inside("keys", "add", "other", "--scope", "root", *store)
    assert (wrong.code, "the scopes are infer, alias, admin" in wrong.stderr) == (2, True)
