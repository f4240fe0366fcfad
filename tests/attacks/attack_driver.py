"""Attacks a real server while a well-behaved client goes on asking: `make attacks` prints what came of each.

Every file of this folder that has a list ATTACKS is a family of attacks.
"""

from __future__ import annotations

import http.client
import importlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from served import Served, served
from target import BODY, CHAT, KEYS, MIB, Attack, Target

FOLDER = Path(__file__).resolve().parent
ATTACK_S = 1.0
QUIET_S = 2.0
FLAGS = ("--api-key", ",".join(KEYS), "--key-read-rpm", "1200")
SLOWDOWN = 50
"""The neighbor's slowest request during an attack, as a multiple of its slowest one before, may be that."""
FLOOR_S = 0.02  # quicker than this need no neighbor be


@dataclass(frozen=True)
class Outcome:
    """What an attack did. `slowdown` is the neighbor's slowest request relative to its slowest quiet one."""

    attack: Attack
    outcome: str
    failure: str
    grown_mib: float
    slowdown: float
    asked: int


@dataclass
class Neighbor:
    """A client that asks one thing after another, each on a connection of its own, in a thread."""

    server: Served
    times_s: list[float] = field(default_factory=list[float])
    failures: list[str] = field(default_factory=list[str])
    most_bytes: int = 0

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask, and watch the server's memory."""
        self.times_s, self.failures, self.most_bytes = [], [], self.resident()
        over = threading.Event()
        threads = [threading.Thread(target=work, args=(over,)) for work in (self._ask, self._watch)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def resident(self) -> int:
        """Resident bytes of the server and its workers."""
        process = psutil.Process(self.server.process.pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))

    def _ask(self, over: threading.Event) -> None:
        while not over.is_set():
            for method, path, body in (("POST", CHAT.decode(), BODY), ("GET", "/health", None)):
                start_s = time.monotonic()
                try:
                    status = self._status(method, path, body)
                except OSError as error:
                    status = 0
                    self.failures.append(f"{path}: {error!r}")
                self.times_s.append(time.monotonic() - start_s)
                if status not in (0, 200):
                    self.failures.append(f"{path}: {status}")
            over.wait(0.02)

    def _status(self, method: str, path: str, body: bytes | None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        try:
            connection.request(method, path, body, {"authorization": f"Bearer {KEYS[0]}"})
            reply = connection.getresponse()
            reply.read()
            return reply.status
        finally:
            connection.close()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(0.05):
            self.most_bytes = max(self.most_bytes, self.resident())


def families() -> dict[str, list[Attack]]:
    """The attacks of this folder by file."""
    found: dict[str, list[Attack]] = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path != Path(__file__).resolve() and not path.stem.startswith("test_"):
            attacks: list[Attack] = getattr(importlib.import_module(path.stem), "ATTACKS", [])
            if attacks:
                found[path.stem] = attacks
    return found


def run_attacks(attacks: list[Attack], attack_s: float = ATTACK_S) -> Iterator[Outcome]:
    """Start a server and attack it with one after the other."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served("nano", "--store", f"{folder}/store.sqlite3", *FLAGS) as server,
    ):
        neighbor = Neighbor(server)
        for _ in range(2):  # the first time warms up
            with neighbor.asking():
                time.sleep(QUIET_S / 2)
        assert not neighbor.failures, neighbor.failures
        quiet_s = max(FLOOR_S, *neighbor.times_s)
        for attack in attacks:
            yield _run(attack, neighbor, quiet_s, attack_s)
            assert server.process.poll() is None, f"{attack.name}: the server ended"


def _run(attack: Attack, neighbor: Neighbor, quiet_s: float, attack_s: float) -> Outcome:
    target = Target(neighbor.server.port, attack_s)
    before, outcome, failure = neighbor.resident(), "", ""
    with neighbor.asking():
        try:
            with target.opened:
                outcome = attack.run(target)
        except AssertionError as error:
            failure = f"gave way: {error}"
        time.sleep(0.1)  # what follows from hanging up belongs to the attack as well
    grown_mib = (neighbor.most_bytes - before) / MIB
    slowdown = max(neighbor.times_s) / quiet_s
    if neighbor.failures:
        failure = failure or f"the neighbor failed {len(neighbor.failures)} times: {neighbor.failures[0]}"
    if grown_mib > attack.memory_mib:
        failure = failure or f"grew by {grown_mib:.0f} MiB, {attack.memory_mib} are allowed"
    if slowdown > SLOWDOWN:
        failure = failure or f"the neighbor waited {slowdown:.0f} times as long as before"
    return Outcome(attack, outcome, failure, grown_mib, slowdown, len(neighbor.times_s))


def main() -> int:
    """Run all attacks, print the table; 1 where one succeeded."""
    table = Table(title="headrace serve nano under attack")
    for column in ("attack", "outcome", "server grew by", "neighbor's slowest / quiet", "its requests"):
        table.add_column(column)
    failed = 0
    for outcome in run_attacks([attack for family in families().values() for attack in family]):
        failed += bool(outcome.failure)
        table.add_row(
            outcome.attack.name,
            f"[red]{outcome.failure}[/]" if outcome.failure else outcome.outcome,
            f"{outcome.grown_mib:.1f} MiB",
            f"{outcome.slowdown:.1f}×",
            str(outcome.asked),
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
