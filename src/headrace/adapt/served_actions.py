"""The actions of the adaptive loop within a server: in threads of their own, with its encoder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from headrace.adapt import actions
from headrace.adapt.decisions.comparisons import PairLabel, PairToLabel
from headrace.adapt.decisions.diagnosis import diagnose
from headrace.adapt.decisions.history import history
from headrace.adapt.decisions.judging import ServedJudge
from headrace.adapt.export import everything
from headrace.adapt.retention import REWRITE_EVERY, sweep
from headrace.adapt.serving import embedded
from headrace.adapt.students.checkpoints import note_live_traffic
from headrace.adapt.students.ladder import TaskExample
from headrace.adapt.students.registry import StudentRow
from headrace.adapt.students.rungs.folders import ModelFolders, folders_of
from headrace.adapt.students.rungs.served import ServedAdapters
from headrace.adapt.students.rungs.word_states import tagged
from headrace.adapt.students.rungs.writing import conversation_of, tokens_of, written
from headrace.adapt.students.student import Rung, StudentAnswer
from headrace.adapt.students.training import train
from headrace.adapt.students.training_process import TrainingProcess
from headrace.adapt.traffic.examples import ExampleStore, Forgotten
from headrace.adapt.traffic.kmeans import Floats
from headrace.adapt.traffic.tasks import Embed, TaskView, embed_examples, find_groups, task_views
from headrace.chat.messages import Message
from headrace.config.adapt_settings import AdaptSettings
from headrace.engine.turns import BATCH_PRIORITY
from headrace.errors import InvalidRequest, StoreBusy
from headrace.gateway.gate import GateStore
from headrace.gateway.routes import Route
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext, new_request_id
from headrace.inference.model_runner import ModelRunner
from headrace.storage.keys import KeyLimits

T = TypeVar("T")
TOLD_S = 0.4


class ServedActions:
    """Lives on the event loop; `close` it there. One action that computes runs at a time, one training beside
    them."""

    def __init__(
        self,
        store: ExampleStore,
        settings: AdaptSettings,
        gates: GateStore,
        runner: ModelRunner,
        file: Path | None,
    ) -> None:
        """`runner` computes in the background, after requests of clients; `file` has what was collected."""
        self._file = file
        self._process: TrainingProcess | None = None
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether requests of clients are under way."""
        self.open_calls = 0
        """Of actions that compute, which are no such requests."""
        self._store, self._settings, self._gates, self._runner = store, settings, gates, runner
        self._threads = ThreadPoolExecutor(3, thread_name_prefix="headrace-adapt")
        self._computing, self._training, self._closed = asyncio.Lock(), asyncio.Lock(), False
        self._sweeps = 0
        self.adapters = ServedAdapters(file)
        self.judge = ServedJudge(store.database, settings.judge_pairs)
        self.weights_of: Callable[[str], Path] | None = None
        """The folder of a served model that adapters can be trained on."""
        self.loop: asyncio.AbstractEventLoop | None = None

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _compute(self, work: Callable[[Embed], T]) -> T:
        loop = asyncio.get_running_loop()

        def embed(texts: Sequence[str]) -> Floats:
            return asyncio.run_coroutine_threadsafe(self._vectors(texts), loop).result()

        return await self._alone(self._computing, lambda: work(embed))

    async def _alone(self, turn: asyncio.Lock, work: Callable[[], T]) -> T:
        """Run it in a thread when it is its turn."""

        def over(done: asyncio.Future[T]) -> None:
            turn.release()
            if not done.cancelled():
                done.exception()  # of a client that left nobody asks for it

        self.open_calls += 1
        try:
            await turn.acquire()
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
            running.add_done_callback(over)  # a thread goes on when its client leaves
            return await asyncio.shield(running)
        finally:
            self.open_calls -= 1

    async def _vectors(self, texts: Sequence[str]) -> Floats:
        call = CallContext(request_id=new_request_id(), account=Account("", KeyLimits()), background=True)
        return await embedded(self._runner, self._settings.encoder, texts, call, BATCH_PRIORITY)

    async def _written(self, row: StudentRow, examples: Sequence[TaskExample]) -> list[StudentAnswer]:
        if not row.model.is_loaded:
            call = CallContext(request_id=new_request_id(), account=Account("", KeyLimits()), background=True)
            return await tagged(self._runner, row.model, [one.question for one in examples], call)
        model = await self.adapters.model_of(row)
        asked = [conversation_of(one) or (Message("user", one.question),) for one in examples]
        return await written(self._runner.handler, model, asked, tokens_of(examples))

    def written_now(self, row: StudentRow, examples: Sequence[TaskExample]) -> list[StudentAnswer]:
        """See `shadow.Written`: from a thread."""
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(self._written(row, examples), self.loop).result()

    async def status(self) -> Struct:
        """See `headrace adapt status`."""
        return await self._run(lambda: actions.status_of(self._store, self._settings))

    async def tasks(self) -> list[TaskView]:
        """The tasks with the groups that were found last."""
        return await self._run(lambda: task_views(self._store))

    async def find_tasks(self) -> list[TaskView]:
        """The tasks, after their groups were found anew."""

        def found(embed: Embed) -> list[TaskView]:
            if self._store.database.exists:
                find_groups(self._store, self._settings.encoder, embed)
            return task_views(self._store)

        return await self._compute(found)

    async def rename(self, task: str, name: str) -> list[TaskView]:
        """Give a task a name; it as it is then."""

        def renamed() -> list[TaskView]:
            wanted = self._store.task(task).id
            actions.rename(self._store, wanted, name)
            return [one for one in task_views(self._store) if one.id == wanted]

        return await self._run(renamed)

    async def diagnose(self, task: str) -> Struct:
        """See `headrace adapt diagnose`."""
        store, settings = self._store, self._settings
        return await self._compute(lambda embed: diagnose(store, store.task(task), settings, embed))

    async def history(self, task: str) -> Struct:
        """See `headrace adapt history`."""
        return await self._run(lambda: history(self._store, self._store.task(task).id))

    async def train(self, task: str, rung: Rung | None = None) -> Struct:
        """See `headrace adapt train`."""
        store, settings, weights_of = self._store, self._settings, self.weights_of

        def folders(wanted: str) -> ModelFolders:
            return ModelFolders() if weights_of is None else folders_of(store, wanted, settings, weights_of)

        def in_memory(embed: Embed) -> Struct:  # which no other process can read
            wanted = store.task(task).id
            name, card = train(store, wanted, settings, embed, folders=folders(wanted), rung=rung)
            return actions.Trained(student=name, task=wanted, card=card)

        def embedded_task(embed: Embed) -> str:
            wanted = store.task(task).id
            embed_examples(store.database, settings.encoder, embed, task=wanted)
            return wanted

        def trained(file: Path, wanted: str) -> Struct:
            self._process = TrainingProcess(file, wanted, settings, folders(wanted), rung)
            if self._closed:
                self._process.stop()
            try:
                name, card = self._process.result()
            finally:
                self._process = None
            return actions.Trained(student=name, task=wanted, card=card)

        watching = asyncio.ensure_future(self._tell_of_traffic())
        try:
            if (file := self._file) is None:
                return await self._compute(in_memory)
            self._check_no_training()
            wanted = await self._compute(embedded_task)
            self._check_no_training()
            # Beside other actions, which must not wait for hours.
            return await self._alone(self._training, lambda: trained(file, wanted))
        finally:
            watching.cancel()

    def _check_no_training(self) -> None:
        if self._training.locked():
            raise InvalidRequest("another training runs: wait for its end", param="task")

    async def _tell_of_traffic(self) -> None:
        """While a training runs, here or of a command: requests of clients go first."""
        while True:
            if self.is_busy():
                with suppress(StoreBusy):  # such as while the file is written anew
                    await self._run(lambda: note_live_traffic(self._store.database))
            await asyncio.sleep(TOLD_S)

    async def shadow(self, task: str, who: str) -> Struct:
        """See `headrace adapt shadow`."""
        self.loop = asyncio.get_running_loop()
        self.judge.begin()
        judged = self._settings.judge, self.judge.compare
        return await self._compute(
            lambda embed: actions.shadow(self._store, task, embed, who, self.written_now, *judged)
        )

    async def to_label(self, task: str, limit: int) -> list[PairToLabel]:
        """See `actions.to_label`."""
        return await self._run(lambda: actions.to_label(self._store, task, limit))

    async def label(self, task: str, labels: Sequence[PairLabel], who: str) -> Struct:
        """See `headrace adapt label`."""
        return await self._run(lambda: actions.label(self._store, task, labels, who))

    async def evaluate_by(self, task: str, evaluator: str) -> list[TaskView]:
        """Say what compares students of a task with the incumbent; the task as it is then."""

        def said() -> list[TaskView]:
            actions.evaluate_by(self._store, task, evaluator)
            wanted = self._store.task(task).id
            return [one for one in task_views(self._store) if one.id == wanted]

        return await self._run(said)

    async def promote(
        self,
        task: str,
        routes: Sequence[Route],
        served_name: actions.ServedName,
        who: str,
        how: actions.PromotionTerms,
    ) -> Struct:
        """See `headrace adapt promote`."""
        how = replace(how, canaries=self._settings.canaries)
        return await self._run(
            lambda: actions.promote_student(*(self._store, self._gates, task, routes, served_name, who, how))
        )

    async def rollback(self, task: str, who: str) -> Struct:
        """See `headrace adapt rollback`."""
        return await self._run(lambda: actions.roll_back_student(self._store, task, who))

    async def export(self, key: str | None) -> list[dict[str, object]]:
        """See `headrace adapt export`."""
        return await self._run(lambda: everything(self._store, key))

    async def sweep(self) -> None:
        """Delete what is older than the retention."""

        def swept() -> None:
            sweep(self._store, self._settings)
            if self._sweeps % REWRITE_EVERY == 0:
                self._store.rewrite()
            self._sweeps += 1

        await self._run(swept)

    async def forget(self, key: str | None, reply: str | None) -> Forgotten:
        """See `headrace adapt forget`; with neither all is deleted."""
        return await self._run(lambda: actions.forget(self._store, key, reply))

    def close(self) -> None:
        """Take no more actions. A training goes on the next time that it is asked for."""
        self._closed = True
        if self._process is not None:
            self._process.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
