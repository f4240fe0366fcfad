"""The steps of agents in the store, written in its threads."""

from __future__ import annotations

from headrace.inference.store_threads import StoreThreads
from headrace.storage.agent_runs import AgentRuns


class RunJournal:
    """See `steps.StepJournal`."""

    def __init__(self, runs: AgentRuns, threads: StoreThreads) -> None:
        self._runs, self._threads = runs, threads

    async def steps(self, run_id: str) -> dict[str, bytes | None]:
        """See `StepJournal.steps`."""
        return await self._threads.run(lambda: self._runs.steps(run_id))

    async def start(self, run_id: str, name: str) -> None:
        """See `StepJournal.start`."""
        await self._threads.run(lambda: self._runs.start(run_id, name))

    async def finish(self, run_id: str, name: str, body: bytes) -> None:
        """See `StepJournal.finish`."""
        await self._threads.run(lambda: self._runs.finish(run_id, name, body))
