"""The loop before a model that is served as it is; the server is killed in every stage, and goes on."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

LABELS = ["water", "land", "sky"]
THINGS = [
    f"{size} {color} {what}"
    for size in ("big", "old")
    for color in ("red", "blue", "green")
    for what in ("house", "boat", "lake")
]
SETTINGS = """
node_usd_per_hour = 36.0
[adapt]
enabled = true
keys = ["*"]
detector = "patterns"
margin = 0.2
"""


class KilledServer:
    """`headrace serve mini embed` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.kills = folder, 0
        (folder / "headrace.toml").write_text(f'store = "{folder}/store.sqlite3"\n{SETTINGS}')
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "headrace", "serve", "mini", "embed", "--port", "0"]
        environment = {name: value for name, value in os.environ.items() if "HEADRACE" not in name}
        self._process = subprocess.Popen(
            command, cwd=self._folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", self._process.stdout.readline())
        assert found, "the server did not start"
        self.http = httpx.Client(base_url=found[0], timeout=300, trust_env=False)

    def end(self, how: int = signal.SIGKILL) -> None:
        self._process.send_signal(how)
        self._process.communicate()
        self.http.close()

    def killed(self, during: Callable[[], object], when: Callable[[], bool]) -> None:
        """Kill it as soon as `when` is so, while `during` runs; start it again."""

        def run() -> None:
            with suppress(httpx.HTTPError, RuntimeError):  # the server is gone, or its client closed
                during()

        running = threading.Thread(target=run)
        running.start()
        while not when() and running.is_alive():
            time.sleep(0.002)
        self.end()
        running.join()
        self.kills += 1
        self.start()

    def adapt(self, action: str, **body: Any) -> Any:
        if not body:
            return self.http.get(f"/v1/adapt/{action}").json()
        return self.http.post(f"/v1/adapt/{action}", json=body).json()

    def sort(self, text: str) -> tuple[str, str]:
        """The answer, and what has given it."""
        body = {
            "model": "mini",
            "messages": [{"role": "system", "content": "Sort it."}, {"role": "user", "content": text}],
            "temperature": 0,
            "structured_outputs": {"choice": LABELS},
        }
        reply = self.http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        said = str(reply.json()["choices"][0]["message"]["content"])
        return said, reply.headers.get("x-headrace-target", "mini")


@pytest.mark.soak
def test_the_loop_goes_on_after_a_kill_in_every_stage(tmp_path: Path) -> None:
    server = KilledServer(tmp_path)
    try:
        _loop(server)
    finally:
        server.end()


def _loop(server: KilledServer) -> None:
    known = {text: server.sort(text)[0] for text in THINGS}
    asked = itertools.cycle(THINGS)
    sent = [0]

    def send(count: int) -> set[str]:
        """Ask; what has answered. Every answer is the one that it was the first time."""
        found = set[str]()
        for text in itertools.islice(asked, count):
            said, target = server.sort(text)
            assert said == known[text], (text, said, target)
            found.add(target)
            sent[0] += 1
        return found

    def is_sent(count: int) -> Callable[[], bool]:
        until = sent[0] + count
        return lambda: sent[0] >= until

    def state(task: str) -> str:
        students = server.adapt(f"history?task={task}")["students"]
        return str(students[0]["state"]) if students else ""

    server.killed(lambda: send(1000), is_sent(30))  # while it collects
    send(40)
    [one] = server.adapt("tasks")["data"]
    task = one["id"]
    assert one["examples"] >= 40
    server.killed(
        lambda: server.adapt("train", task=task), lambda: bool(server.adapt("status")["trainings"])
    )  # while it trains
    for _ in range(100):  # the process of the training ends with its server
        trained = server.adapt("train", task=task)
        if "student" in trained or state(task) == "trained":
            break
        time.sleep(0.1)
    assert state(task) == "trained", trained
    server.killed(lambda: server.adapt("shadow", task=task), lambda: state(task) == "shadow")
    server.killed(lambda: send(1000), is_sent(5))  # while it is judged
    for _ in range(30):
        if state(task) == "ready":
            break
        send(10)
    assert state(task) == "ready" and send(10) == {"mini"}  # a person decides
    server.killed(lambda: server.adapt("promote", task=task, share=1), lambda: state(task) == "promoted")
    assert state(task) in ("ready", "promoted")
    if state(task) == "ready":
        server.adapt("promote", task=task, share=1)
    student = f"adapt/{server.adapt(f'history?task={task}')['students'][0]['id']}"
    for _ in range(50):
        if student in send(2):
            break
    assert send(20) == {student}
    server.killed(lambda: send(1000), is_sent(10))  # while it answers
    send(2)  # students are read with the first requests
    assert student in send(20)
    server.killed(lambda: server.adapt("rollback", task=task), lambda: state(task) == "rolled_back")
    assert state(task) in ("promoted", "rolled_back")
    if state(task) == "promoted":
        server.adapt("rollback", task=task)
    for _ in range(50):
        if send(2) == {"mini"}:
            break
    assert send(20) == {"mini"} and server.kills == 7
    whats = [one["what"] for one in server.adapt(f"history?task={task}")["decisions"]]
    assert whats == ["rolled_back", "promoted", "ready", "shadow", "trained"]
