"""Real servers of databases, made anew in a temporary folder and run by a user who is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from data_servers import DataEngineMaker, Server

from headrace.inference.local_models import LocalModels
from postgres_server import running_postgres

PASSWORD = "s3cr3t'pass\\word 42"
WAIT_S = 60.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def other_user(wanted: str) -> str | None:
    """Whom servers run as where tests are root; None where they are not."""
    if os.getuid() != 0:
        return None
    for name in (wanted, "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return "nobody"


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + WAIT_S
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            pytest.skip("the server of the database does not start here")
        time.sleep(0.1)


def owned(folder: Path, wanted: str) -> None:
    """Let the servers' user have a folder, and pass those above it."""
    user = other_user(wanted)
    if user is not None:
        shutil.chown(folder, user)
        for above in folder.parents:
            if str(above).startswith("/tmp/"):
                above.chmod(above.stat().st_mode | 0o055)


@pytest.fixture(scope="module")
def models() -> Generator[LocalModels]:
    """Those of this process, for the tests of one file."""
    found = LocalModels()
    yield found
    found.close()


@pytest.fixture(scope="session")
def postgres() -> Generator[Server]:
    port = free_port()
    with running_postgres("owner", port, PASSWORD) as found:
        yield Server("postgres", port, "owner", PASSWORD, "postgres", found.run)


@pytest.fixture(scope="session")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    daemon, install = shutil.which("mariadbd"), shutil.which("mariadb-install-db")
    if daemon is None or install is None:
        pytest.skip("needs MariaDB: apt-get install mariadb-server")
    folder = tmp_path_factory.mktemp("mysql")
    owned(folder, "mysql")
    user, port = other_user("mysql"), free_port()
    data, sock = folder / "data", folder / "s"
    common = ["--no-defaults", f"--datadir={data}"]
    made = subprocess.run(
        [install, *common, "--auth-root-authentication-method=normal", "--skip-test-db"],
        user=user,
        capture_output=True,
        cwd=folder,
    )
    assert made.returncode == 0, made.stderr.decode()
    process = subprocess.Popen(
        [
            *(daemon, *common, f"--port={port}", f"--socket={sock}", "--bind-address=127.0.0.1"),
            *(f"--pid-file={folder}/pid", "--innodb-flush-method=nosync", "--skip-log-bin"),
        ],
        user=user,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )

    def run(sql: str) -> str:
        done = subprocess.run(
            ["mariadb", "--no-defaults", f"--socket={sock}", "-uroot", "-N", "-B", "-e", sql],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def ready() -> bool:
        with suppress(RuntimeError):
            return run("select 1") == "1"
        return False

    try:
        wait_for(ready, process)
        password = PASSWORD.replace("\\", "")
        run("create database shop; create user reader identified by '" + password.replace("'", "''") + "';")
        run("grant all on shop.* to reader")
        yield Server("mysql", port, "reader", password, "shop", run)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def engine(tmp_path: Path) -> Generator[DataEngineMaker]:
    """Makes engines, and ends them."""
    maker = DataEngineMaker(tmp_path / "cache")
    yield maker
    maker.close()


def variables(server: Server) -> Mapping[str, str]:
    return {f"TEST_{server.kind.upper()}_PASSWORD": server.password}
