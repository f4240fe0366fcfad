"""The steps of agents in the store, written in its threads."""

from __future__ import annotations

from headrace.inference.store_threads import StoreThreads
from headrace.storage.agent_runs import AgentRuns


class RunJournal:
    """See `steps.StepJournal`."""

    def __init__(self, runs: AgentRuns, threads: StoreThreads, *, computes_again: bool = False) -> None:
        """`computes_again`: answers of the model are computed again, with the events that they had."""
        self._runs, self._threads, self._computes_again = runs, threads, computes_again

    async def steps(self, run_id: str) -> dict[str, bytes | None]:
        """See `StepJournal.steps`."""
        found = await self._threads.run(lambda: self._runs.steps(run_id))
        if not self._computes_again:
            return found
        return {name: body for name, body in found.items() if not _is_of_the_model(name)}

    async def start(self, run_id: str, name: str) -> None:
        """See `StepJournal.start`."""
        await self._threads.run(lambda: self._runs.start(run_id, name))

    async def finish(self, run_id: str, name: str, body: bytes) -> None:
        """See `StepJournal.finish`."""
        await self._threads.run(lambda: self._runs.finish(run_id, name, body))


def _is_of_the_model(name: str) -> bool:
    return name.isdecimal() or name.endswith(".check")
