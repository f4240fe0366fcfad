"""A PostgreSQL server of its own, on a socket in a folder, while a block runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("initdb", "pg_ctl")


def binaries() -> dict[str, str] | None:
    """The programs that are needed, None where PostgreSQL is not installed."""
    folders = [os.environ.get("PATH", ""), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))]
    found = {name: shutil.which(name, path=os.pathsep.join(folders)) for name in NAMES}
    return None if None in found.values() else {name: str(path) for name, path in found.items()}


@contextmanager
def running_postgres() -> Iterator[str]:
    """Its address. It does not run as root: there it runs as nobody."""
    programs = binaries()
    assert programs is not None
    user = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as name:
        folder = Path(name)
        if user is not None:
            shutil.chown(folder, user)

        def run(program: str, *arguments: str) -> None:
            command = [programs[program], "-D", str(folder / "data"), *arguments]
            done = subprocess.run(
                command, user=user, cwd=folder, capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr

        run("initdb", "-U", "headrace", "-A", "trust", "--no-sync")
        options = (
            f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off -c max_connections=50"
        )
        run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://headrace@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
