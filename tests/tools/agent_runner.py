"""Runs an agent of 12 steps in forks of this process, each of which kills itself at a given write: a line
`STORE EFFECTS IDEMPOTENT POINT DECISIONS` of JSON in, the outcome out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from scripted import ScriptedModel

from headrace.chat.messages import Message
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.events import ApprovalWanted, OutputDelta, OutputFinished
from headrace.inference.requests import ChatRequest
from headrace.inference.store_threads import StoreThreads
from headrace.storage.agent_runs import AgentRuns
from headrace.storage.database import Database
from headrace.storage.keys import KeyLimits
from headrace.tools.agent.loop import AgentHandler
from headrace.tools.agent.plan import AgentPlan
from headrace.tools.agent.run_journal import RunJournal
from headrace.tools.tool import ToolResult, ToolSpec

STEPS = 12


class Killer:
    """Counts places, and ends the process at one of them as `kill -9` does."""

    def __init__(self, point: int) -> None:
        self.left = point

    def pass_by(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingJournal(RunJournal):
    """A journal around whose writes the process may end."""

    killer: Killer

    async def start(self, run_id: str, name: str) -> None:
        self.killer.pass_by()
        await super().start(run_id, name)
        self.killer.pass_by()

    async def finish(self, run_id: str, name: str, body: bytes) -> None:
        self.killer.pass_by()
        await super().finish(run_id, name, body)
        self.killer.pass_by()


class Effects:
    """A tool whose calls are lines of a file."""

    def __init__(self, file: Path, killer: Killer, *, idempotent: bool) -> None:
        self._file, self._killer = file, killer
        self._idempotent = idempotent
        self.spec = ToolSpec(
            name="append", description="", parameters={"type": "object"}, idempotent=idempotent
        )

    def specs(self, call: CallContext) -> list[ToolSpec]:
        return [self.spec]

    async def run(self, name: str, arguments: Any, call: CallContext, key: str = "") -> ToolResult:
        line = f"{arguments['n']} {key}"
        done = self._file.read_text().splitlines() if self._file.exists() else []
        if not (self._idempotent and line in done):
            with self._file.open("a") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        self._killer.pass_by()
        return ToolResult(text=f"appended {arguments['n']}")


def script(request: ChatRequest) -> Any:
    results = [one for one in request.messages if one.role == "tool"]
    if len(results) < STEPS - 1:
        return [("append", {"n": len(results) + 1})]
    return "done: " + " | ".join(one.content or "" for one in results)


async def run(order: dict[str, Any]) -> dict[str, Any]:
    killer = Killer(order["point"])
    tools = Effects(Path(order["effects"]), killer, idempotent=order["idempotent"])
    database, threads = Database(Path(order["store"])), StoreThreads(1)
    runs = AgentRuns(database)
    runs.begin("run", "", b"{}")
    journal = DyingJournal(runs, threads)
    journal.killer = killer
    plan = AgentPlan(run_id="run", tools=(tools.spec,), decisions=order["decisions"])
    handler = AgentHandler(ScriptedModel(script), tools, plan, journal)
    request = ChatRequest(id="r", messages=(Message("user", "Count."),))
    call = CallContext(request_id="r", account=Account("", KeyLimits()))
    text, asked, reason = "", [], ""
    async for batch in handler.handle(request, call):
        for event in batch:
            if isinstance(event, OutputDelta):
                text += "".join(getattr(part, "text", "") for part in event.parts)
            elif isinstance(event, ApprovalWanted):
                asked.append((event.id, json.loads(event.arguments)["n"], event.was_begun))
            elif isinstance(event, OutputFinished):
                reason = event.reason
    threads.close()
    database.close()
    return {"text": text, "asked": asked, "reason": reason}


def main() -> None:
    for line in sys.stdin:
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            os.write(writer, json.dumps(asyncio.run(run(json.loads(line)))).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = pipe.read()
        _, status = os.wait()
        print(json.dumps({"status": status, "outcome": json.loads(said or b"null")}), flush=True)


if __name__ == "__main__":
    main()
