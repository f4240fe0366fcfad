"""Rounds of kills: a server under a mixed load is killed again and again in many ways, and what its clients,
its batch, its tools, its ledger and its webhook have got is compared with a run that nothing disturbed.

    python tests/journal/kill_rounds.py --rounds 50 --kills 20 --report kills.jsonl
"""

from __future__ import annotations

import argparse
import http.client
import http.server
import json
import logging
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from headrace.adapt.decisions.alerts import raise_alert
from headrace.adapt.schema import open_adapt
from headrace.journal.frames import FILE_BYTES, RECORD_BYTES, body_bytes
from journal.clients import (
    PATIENCE_S,
    REFUSED,
    Client,
    Receiver,
    Undisturbed,
    all_kinds,
    batch_body,
    learned,
    said_by,
    without_clock,
)
from journal.faults import JumpingClock, full, library, small_disk
from journal.killed_server import KilledServer
from journal.notes_server import with_notes
from journal.requests_of_every_kind import CHAT, STORY

CLIENTS, SEEDS = 10, 2
FAULTS = {"server": 6, "worker": 10, "both": 8, "torn": 3, "full": 1, "clock": 2}
"""How often each comes."""
WORKER_KILLS = 3  # of one server: a request of which four workers have died is given up on purpose
DISK_BYTES = 96 * 2**20
BATCH_LINES = 24
JUMPS_S = (-7200, -3600, -1, 0, 1, 3600, 7200)


class Round:
    """One server, one journal, many kills."""

    def __init__(
        self,
        folder: Path,
        draw: random.Random,
        undisturbed: Undisturbed,
        *,
        clients: int = CLIENTS,
        cluster: str = "",
    ) -> None:
        self.folder, self._draw, self._undisturbed = folder, draw, undisturbed
        self._most, self._receiver = clients, Receiver()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.clients: list[Client] = []
        self._lives = 0  # worker kills of this server
        shim = library(folder)
        self._jumping = None if shim is None else JumpingClock(folder / "clock", shim)
        adapt = {"enabled": True, "keys": "*", "sample": 0.0001, "detector": "patterns"}
        adapt |= {"webhook": self._receiver.url, "webhook_secret_env": "SECRET"}
        self._environment = {
            **with_notes(folder),
            "HEADRACE_ADAPT": json.dumps(adapt),
            "HEADRACE_NODE_USD_PER_HOUR": "1",
            "HEADRACE_LOAD_ON_DEMAND": "true",
            "SECRET": "a secret of at least some length",
            **({"HEADRACE_CLUSTER": cluster} if cluster else {}),
            **({} if self._jumping is None else self._jumping.environment),
        }
        self._faults = {**FAULTS, "replica": 20} if cluster else FAULTS
        self.server = KilledServer(folder, environment=self._environment)

    def play(self, kills: int, faults: Sequence[str] = ()) -> None:
        """Kill, and judge. `faults` are the first ones, in this order; then they come at random."""
        self._next = list(faults)
        with small_disk(self.server.journal, DISK_BYTES) as self._is_small:
            self._raise_alert()  # a server looks after alerts when there is something collected
            self.server.start()
            try:
                self._load(kills)
                self._judge()
            finally:
                if self.server.process is not None and self.server.process.poll() is None:
                    self.server.kill()
                self._receiver.close()

    # -- the load and the kills ------------------------------------------------------------------------

    def _load(self, kills: int) -> None:
        self._batch = self._begin_batch()
        self._keyed: dict[str, bytes] = {}
        names = list(self._faults)
        while self.counts["kills"] < kills:
            self._feed()
            time.sleep(self._draw.uniform(0.1, 2.0))
            fault = self._draw.choices(names, list(self._faults.values()))[0]
            fault = self._next.pop(0) if self._next else fault
            self.counts[fault] += 1
            getattr(self, f"_fault_{fault}")()

    def _feed(self) -> None:
        """Keep so many clients busy; and another alert, and a request with a key that is sent again."""
        while sum(not one.is_whole and not one.problem for one in self.clients) < self._most:
            seed = self._draw.randrange(SEEDS)
            kind = self._draw.choice([*sorted(all_kinds(seed)), "agent", "agent"])
            self.clients.append(Client(self.server, f"r{len(self.clients)}", kind, seed))
        self._raise_alert()
        self._ask_with_a_key()

    def _raise_alert(self) -> None:
        self.counts["alerts"] += 1
        database = open_adapt(self.folder / "store.sqlite3")
        raise_alert(database, "drift", f"task {self.counts['alerts']}", "", "said")
        database.close()

    def _ask_with_a_key(self) -> None:
        """The same key gives the same bytes, whatever died meanwhile."""
        key = f"key{self._draw.randrange(4)}"
        body = {"model": "mini", "messages": STORY, "max_tokens": 24, "ignore_eos": True}
        try:
            with self.server.ask("POST", CHAT, body, {"idempotency-key": key}) as reply:
                said = reply.read()
                if reply.status == 200 and reply.isclosed():
                    known = self._keyed.setdefault(key, said)
                    if known != said:
                        self.problems.append(f"{key}: {known[:300]!r} and then {said[:300]!r}")
                    self.counts["keyed"] += 1
                elif reply.status not in (*REFUSED, 409):
                    self.problems.append(f"{key}: {reply.status} {said[:300]!r}")
        except (OSError, http.client.HTTPException):
            pass

    # -- faults ----------------------------------------------------------------------------------------

    def _fault_server(self) -> None:
        self._end_server()
        self._begin_server()

    def _fault_worker(self) -> None:
        if self._lives >= WORKER_KILLS:
            self._fault_server()
            return
        self._lives += 1
        self._kill_worker()

    def _fault_replica(self) -> None:
        """One of several is killed or stopped."""
        found = json.loads(self.server.ask("GET", "/v1/cluster").read())["data"]
        pids = [one["pid"] for model in found for one in model["replicas"]]
        if len(pids) > 1:
            pid, how = self._draw.choice(pids), self._draw.choice((signal.SIGKILL, signal.SIGSTOP))
            with suppress(ProcessLookupError):
                os.kill(pid, how)
                self.counts["kills"] += 1

    def _fault_both(self) -> None:
        self._kill_worker()
        time.sleep(self._draw.choice((0.0, self._draw.uniform(0.0, 0.3))))
        self._fault_server()

    def _fault_torn(self) -> None:
        """The server was killed while it wrote: a part of the next record is there."""
        self._end_server()
        path = max(self.server.journal.glob("*.log"))
        data = path.read_bytes()
        record = data[FILE_BYTES : FILE_BYTES + RECORD_BYTES + body_bytes(data[FILE_BYTES:])]
        with path.open("ab") as file:
            file.write(record[: self._draw.randrange(1, len(record))] or b"half")
        self._begin_server()

    def _fault_full(self) -> None:
        """Nothing fits on the disk for a while; sometimes the server dies in it."""
        if not self._is_small:
            self.counts["full"] -= 1
            self._fault_server()
            return
        with full(self.server.journal):
            time.sleep(self._draw.uniform(0.2, 1.0))
            dies = self._draw.random() < 0.5
            if dies:
                self._end_server()
        if not dies:
            time.sleep(self._draw.uniform(0.0, 1.5))
            self._end_server()
        self._begin_server()

    def _fault_clock(self) -> None:
        """The clock is set while requests run, and while no server does."""
        if self._jumping is not None:
            self._jumping.jump_to(self._draw.choice(JUMPS_S))
            time.sleep(self._draw.uniform(0.0, 0.5))
        self._end_server()
        if self._jumping is not None:
            self._jumping.jump_to(self._draw.choice(JUMPS_S))
        self._begin_server()

    def _kill_worker(self) -> None:
        if self.server.kill_workers():
            self.counts["kills"] += 1

    def _end_server(self) -> None:
        self.server.kill()
        self.counts["kills"] += 1

    def _begin_server(self) -> None:
        self._lives = 0
        self.server.start()

    # -- the batch -------------------------------------------------------------------------------------

    def _begin_batch(self) -> str:
        lines = [
            {"custom_id": f"line{n}", "method": "POST", "url": CHAT, "body": batch_body(n)}
            for n in range(BATCH_LINES)
        ]
        text = "".join(json.dumps(one) + "\n" for one in lines)
        head = "--x\r\ncontent-disposition: form-data; name="
        parts = f'{head}"purpose"\r\n\r\nbatch\r\n'
        parts += f'{head}"file"; filename="lines.jsonl"\r\n\r\n{text}\r\n--x--\r\n'
        file = self._calm("POST", "/v1/files", parts, {"content-type": "multipart/form-data; boundary=x"})
        asked = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
        return str(self._calm("POST", "/v1/batches", asked)["id"])

    def _calm(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        reply = self.server.ask(method, path, body, headers)
        said = reply.read()
        assert reply.status == 200, (path, reply.status, said)
        return json.loads(said)

    # -- what came of it -------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Wait for all, and compare."""
        for one in self.clients:
            one.wait()
            if not one.is_whole:
                self.problems.append(f"{one.name} ({one.kind}): {one.problem or 'it did not end'}")
        self.counts["requests"] = len(self.clients)
        missing = {(one.kind, one.seed) for one in self.clients} - self._undisturbed.keys()
        self._undisturbed |= learned(self.server, missing)
        for one in self.clients:
            if one.is_whole:
                self._compare(one)
        self._judge_batch()
        self._judge_webhooks()
        self.server.kill(signal.SIGTERM)
        self._judge_tools()
        self._judge_ledger()

    def _compare(self, one: Client) -> None:
        said, expected = said_by(one), self._undisturbed[one.kind, one.seed]
        if one.kind == "agent" and b"mcp_approval_request" in one.seen:
            self.counts["approvals"] += 1  # the tool may have been called: a person is asked
        elif said != expected or not said[0]:
            parted = f"{str(said)[:1500]} from {str(expected)[:1500]}"
            self.problems.append(f"{one.name} ({one.kind}, {one.seed}) differs: {parted}")
        reply = self.server.ask("GET", f"/v1/requests/{one.name}/stream")
        kept = reply.read()
        if without_clock(kept) != without_clock(one.seen):
            pairs = enumerate(zip(kept, one.seen, strict=False))
            at = max(80, next((place for place, (a, b) in pairs if a != b), 80))
            self.problems.append(
                f"{one.name} ({one.kind}): kept {reply.status} {len(kept)} {kept[at - 80 : at + 160]!r} "
                f"and seen {len(one.seen)} {one.seen[at - 80 : at + 160]!r}"
            )
        if one.kind == "warm":
            numbers = [line for line in one.seen.split(b"\n") if line.startswith(b"id: ")]
            if numbers != [b"id: %d" % number for number in range(len(numbers))]:
                self.problems.append(f"{one.name}: its events have wrong numbers")

    def _judge_batch(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while (batch := self._calm("GET", f"/v1/batches/{self._batch}"))["status"] != "completed":
            if time.monotonic() > until_s or batch["status"] in ("failed", "expired", "cancelled"):
                self.problems.append(f"the batch: {batch}")
                return
            time.sleep(0.1)
        reply = self.server.ask("GET", f"/v1/files/{batch['output_file_id']}/content")
        lines = [json.loads(line) for line in reply.read().splitlines()]
        times = Counter(one["custom_id"] for one in lines)
        self.counts["batch_lines"] = len(lines)
        if times != Counter(f"line{n}" for n in range(BATCH_LINES)):
            self.problems.append(f"lines of the batch: {times}")
        for one in lines:
            number = int(one["custom_id"][4:])
            key = "batch", number
            text = one["response"]["body"]["choices"][0]["message"]["content"]
            if key not in self._undisturbed:
                body = self._calm("POST", CHAT, batch_body(number))
                self._undisturbed[key] = [body["choices"][0]["message"]["content"]]
            if [text] != self._undisturbed[key]:
                self.problems.append(f"line {number} of the batch differs")

    def _judge_webhooks(self) -> None:
        taken, until_s = self._receiver.taken, time.monotonic() + 60
        while len(taken) < self.counts["alerts"] and time.monotonic() < until_s:
            time.sleep(0.1)
        self.counts["webhooks"] = len(taken)
        self.counts["webhooks_sent_again"] = sum(taken.values()) - len(taken)
        if len(taken) != self.counts["alerts"]:
            self.problems.append(f"{self.counts['alerts']} alerts, {len(taken)} webhooks")

    def _judge_tools(self) -> None:
        file = self.folder / "notes"
        calls = Counter(file.read_text().splitlines()) if file.exists() else Counter[str]()
        self.counts["tool_calls"] = len(calls)
        self.problems += [f"tool call {key} was made {n} times" for key, n in calls.items() if n > 1]

    def _judge_ledger(self) -> None:
        store = sqlite3.connect(self.folder / "store.sqlite3")
        rows = store.execute(
            "SELECT request_id, attempt, count(*) FROM ledger_entries WHERE kind = 'machine' "
            "AND request_id != '' GROUP BY request_id, attempt"
        ).fetchall()
        store.close()
        self.counts["ledger_lines"] = len(rows)
        self.problems += [f"ledger: {one} has {n} lines" for one, _, n in rows if n > 1]
        booked = {str(one).rpartition(".")[0] for one, _, _ in rows}
        self.counts["ledger_missing"] = sum(one.name not in booked for one in self.clients if one.is_whole)


def main() -> int:
    """Play rounds, each in a folder of its own, and write a line for each."""
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--cluster", default="", help='as HEADRACE_CLUSTER: {"replicas": 2, "hang_s": 1.0}')
    given, bad = parser.parse_args(), 0
    undisturbed: Undisturbed = {}
    for seed in range(given.first, given.first + given.rounds):
        folder = Path(tempfile.mkdtemp(dir=given.folder, prefix=f"round{seed}-"))
        began_s = time.monotonic()
        one = Round(folder, random.Random(seed), undisturbed, cluster=given.cluster)
        one.play(given.kills)
        bad += len(one.problems)
        facts = {"seed": seed, "seconds": round(time.monotonic() - began_s), **one.counts}
        line = json.dumps({**facts, "problems": one.problems})
        print(line, flush=True)
        if given.report is not None:
            with given.report.open("a") as file:
                file.write(line + "\n")
        if not one.problems:
            shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
