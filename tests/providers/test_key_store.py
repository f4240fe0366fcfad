"""Keys of providers: encrypted in the store, from the environment, and the command that keeps them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from headrace.errors import InvalidRequest, StoreError, UsageError
from headrace.providers import key_store
from headrace.providers.key_store import KeyStore
from headrace.providers.sealing import key_file
from headrace.providers.target import read_providers
from headrace.storage.database import Database

CANARY = "sk-canary-4f1d9b7c2e"
MASTER = {"HEADRACE_MASTER_KEY": "a long secret of this machine"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def store(tmp_path: Path, environ: dict[str, str]) -> KeyStore:
    return KeyStore(Database(tmp_path / "store" / "h.sqlite3"), environ)


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_store, "LOOK_S", 0.0)


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("extra", [{}, MASTER])
def test_a_key_is_encrypted(tmp_path: Path, environ: dict[str, str], extra: dict[str, str]) -> None:
    environ |= extra
    keys = store(tmp_path, environ)
    assert keys.stored("openai") is None
    assert keys.add("openai", CANARY) == ("master" if extra else "file")
    assert keys.stored("openai") == CANARY
    assert CANARY.encode() not in bytes_of(tmp_path)
    again = store(tmp_path, environ)
    assert again.stored("openai") == CANARY
    again.add("openai", "sk-other")
    assert again.stored("openai") == "sk-other" and keys.stored("openai") == "sk-other"
    if not extra:
        path = key_file(environ)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_size == 32
        assert not path.is_relative_to(tmp_path / "store")
    again.remove("openai")
    assert again.stored("openai") is None
    with pytest.raises(InvalidRequest, match="none"):
        again.remove("openai")


def test_another_master_key_opens_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    store(tmp_path, environ | MASTER).add("openai", CANARY)
    with pytest.raises(UsageError, match="another key") as caught:
        store(tmp_path, environ | {"HEADRACE_MASTER_KEY": "a secret of another machine"}).stored("openai")
    assert CANARY not in str(caught.value)
    with pytest.raises(UsageError, match="missing"):
        store(tmp_path, environ).stored("openai")


def test_a_sealed_key_is_bound_to_its_provider(tmp_path: Path, environ: dict[str, str]) -> None:
    keys = store(tmp_path, environ)
    keys.add("openai", CANARY)
    database = Database(tmp_path / "store" / "h.sqlite3")
    database.execute("UPDATE provider_keys SET provider = 'evil'")
    with pytest.raises(UsageError, match="evil"):
        store(tmp_path, environ).stored("evil")
    database.execute("UPDATE provider_keys SET provider = 'openai', sealed = X'00'")
    with pytest.raises(UsageError, match="sealed with another key"):
        store(tmp_path, environ).stored("openai")


def test_a_damaged_key_file_is_named(tmp_path: Path, environ: dict[str, str]) -> None:
    keys = store(tmp_path, environ)
    keys.add("openai", CANARY)
    key_file(environ).write_bytes(b"short")
    with pytest.raises(StoreError, match="5 bytes"):
        store(tmp_path, environ).stored("openai")


@pytest.mark.parametrize("key", ["", "a b", "a\nb", "ключ", "x" * 5000])
def test_what_is_no_key_is_refused(tmp_path: Path, environ: dict[str, str], key: str) -> None:
    with pytest.raises(UsageError) as caught:
        store(tmp_path, environ).add("openai", key)
    assert not key or key not in str(caught.value)


def test_the_environment_goes_first(tmp_path: Path, environ: dict[str, str]) -> None:
    providers = read_providers({"openai": {}, "work": {"base_url": "http://h/v1", "api_key_env": "WORK"}})
    keys = store(tmp_path, environ)
    keys.add("openai", "sk-stored")
    assert keys.key_of(providers["openai"]) == "sk-stored"
    environ["OPENAI_API_KEY"] = " sk-given\n"
    assert keys.key_of(providers["openai"]) == "sk-given"
    assert keys.key_of(providers["work"]) is None
    environ["WORK"] = "two words"
    with pytest.raises(UsageError, match="WORK") as caught:
        keys.key_of(providers["work"])
    assert "two" not in str(caught.value)
