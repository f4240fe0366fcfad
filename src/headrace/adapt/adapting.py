"""The adaptive loop within a server: made where the table `[adapt]` is enabled, imported nowhere else."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from headrace.adapt.decisions.alerts import Webhook, delivered, raise_alert
from headrace.adapt.decisions.promotion import roll_back
from headrace.adapt.decisions.shadow import check_drift, judge, tell_ready
from headrace.adapt.retention import sweep_every_s
from headrace.adapt.schema import adapt_file, open_adapt
from headrace.adapt.served_actions import ServedActions
from headrace.adapt.serving import Promotion, Promotions, StudentHandler, embedded
from headrace.adapt.students.checkpoints import is_training, note_live_traffic
from headrace.adapt.students.ladder import gate_name, task_examples
from headrace.adapt.students.registry import Registry, StudentRow
from headrace.adapt.students.student import Student
from headrace.adapt.traffic.collector import PATTERNS, Collector, FeedbackGiven
from headrace.adapt.traffic.examples import Example, ExampleStore, Feedback
from headrace.adapt.traffic.fingerprint import Fingerprint
from headrace.adapt.traffic.handler import TrafficHandler
from headrace.adapt.traffic.tasks import save_vectors, without_vector
from headrace.config.adapt_settings import AdaptSettings
from headrace.engine.turns import BATCH_PRIORITY
from headrace.errors import HeadraceError, UsageError
from headrace.gateway.gate import Gate, GateStore
from headrace.gateway.routes import Route
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext, new_request_id
from headrace.inference.handler import Handler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import GenerationRequest, InferenceRequest
from headrace.storage.keys import KeyLimits

LOG = logging.getLogger("headrace.adapt")
LOOK_S = 0.5
"""After which promotions are read again: a person may have rolled one back, or a gate may have closed."""
CLOSING_S = 5.0
SHADOWED = 32
"""Examples of a task after which its student is judged, if it is not before."""


class Adapting:
    """Collects what passes `handler(inner)`, judges students, and lets promoted ones answer. Lives on the
    event loop; `close` it there."""

    def __init__(
        self,
        settings: AdaptSettings,
        store: Path | None,
        runner: ModelRunner,
        gates: GateStore,
        usd_per_hour: float = 0.0,
    ) -> None:
        """`usd_per_hour` is the price of this machine, 0 where it has none."""
        self._settings, self._gates = settings, gates
        self.database = open_adapt(store)
        self._store, self._registry = ExampleStore(self.database, usd_per_hour), Registry(self.database)
        self._background = runner.urgent(BATCH_PRIORITY)
        self.actions = ServedActions(
            self._store, settings, gates, self._background, store and adapt_file(store)
        )
        self.collector = Collector(self._store, settings, self._background, self._stored)
        self._webhook = Webhook(self.database, settings)
        self._promotions = Promotions(settings, self.collector, runner)
        self._promotions.verdicts = self.actions.judge.verdicts
        self._handler: TrafficHandler | None = None
        self._shadowed: set[str] = set()
        self._told: set[str] = set()
        self._swept_s = -math.inf
        self._unseen: Counter[str] = Counter()
        self._watching: asyncio.Task[None] | None = None
        self._syncing: asyncio.Task[None] | None = None
        self._due: set[str] = set()
        self._judging: asyncio.Task[None] | None = None
        self.served_name: Callable[[str | None], str | None] = lambda name: None
        """The own name of a model of this machine, of any name that a request has for it."""

    def students(self, local: Handler) -> Handler:
        """Promoted students, in front of the models of this machine."""
        return StudentHandler(local, self._promotions)

    def before_local(self, request: InferenceRequest) -> Route | None:
        """See `gateway.routing_handler.Before`."""
        return self._promotions.before_local(request, self.served_name)

    async def reroute(self, route: Route, request: GenerationRequest, call: CallContext) -> Route:
        """See `gateway.routing_handler.Reroute`."""
        await self._start()
        return await self._promotions.reroute(route, request, call)

    async def begin(self) -> None:
        """The server begins: what an earlier one has left to be told is told now, not with the next traffic.
        A server that has collected nothing yet begins later."""
        if self.database.exists:
            await self._start()

    async def _start(self) -> None:
        if self._watching is None:
            self.actions.judge.begin()
            self._watching = asyncio.ensure_future(self._watch())
            await self._look()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
                await delivered(self._webhook)
                await self._sweep()
                if self.actions.is_busy():
                    await asyncio.to_thread(self._tell_trainings)
            except Exception:  # whatever it is: no student would be rolled back any more
                LOG.exception("students could not be looked after: tried again in %g s", LOOK_S)

    async def _sweep(self) -> None:
        """Delete what is older than the retention: at once when the server begins, then now and again."""
        if time.monotonic() - self._swept_s >= sweep_every_s(self._settings):
            self._swept_s = time.monotonic()
            await self.actions.sweep()

    async def _look(self) -> None:
        """Take over what was decided meanwhile."""
        try:
            shadowed, promoted, writing = await asyncio.to_thread(self._read)
        except HeadraceError as error:
            LOG.warning("students could not be read, they stay as they were: %s", error.message)
            return
        self._shadowed, self._promotions.known = shadowed, promoted
        # Beside it: what is rolled back must not wait for what is loaded.
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.ensure_future(self.actions.adapters.sync(writing))

    def _read(self) -> tuple[set[str], dict[str, Promotion], list[StudentRow]]:
        """The tasks whose students are judged, promoted students, and those of both that write. One whose
        gate has closed is rolled back."""
        if not self.database.exists:
            return set(), {}, []
        before, found = self._promotions.known, dict[str, Promotion]()
        for row in self._registry.students("promoted"):
            gate = self._gates.read(gate_name(row.task))
            if gate.closed:
                why = closed_because(gate)
                roll_back(self._store, row.task, why=why, student=row.id)
                said = (
                    f"student {row.id} of task {row.task} is rolled back: {why}; the large model answers "
                    f"again, and `headrace adapt train {row.task}` learns from what came since"
                )
                raise_alert(self.database, "rolled_back", row.task, row.id, said)
                continue
            known = before.get(row.task)
            is_known = known is not None and known.row.id == row.id
            if known is not None and is_known and known.row.model.times == row.model.times:
                student = known.student
            else:
                student = Student(row.model)
            found[row.task] = Promotion(row, student, gate.audited)
        for row in self._registry.students("ready"):
            if row.id not in self._told:  # also where the process was killed in the moment
                self._told.add(row.id)
                tell_ready(self._store, row)
        shadowed = self._registry.students("shadow")
        writing = [row for row in (*shadowed, *(one.row for one in found.values())) if row.model.is_loaded]
        return {row.task for row in shadowed} | found.keys(), found, writing

    def _tell_trainings(self) -> None:
        """Those of commands wait, too, while requests of clients are under way."""
        if is_training(self.database):
            note_live_traffic(self.database)

    async def _stored(self, print_: Fingerprint, example: Example) -> None:
        """Have the student of a task judged by its latest examples, when nothing else waits to be stored."""
        await self._start()
        task = print_.id
        self._unseen[task] += 1
        if task not in self._shadowed or (self.collector.is_busy and self._unseen[task] < SHADOWED):
            return
        del self._unseen[task]
        self._due.add(task)
        if self._judging is None or self._judging.done():
            self._judging = asyncio.ensure_future(self._judge_due())

    async def _judge_due(self) -> None:
        """Beside what is collected, which must not wait: students are asked when nothing else is computed."""
        self.actions.loop = asyncio.get_running_loop()
        while self._due:
            task = self._due.pop()
            try:
                await self._embed(task)
                await asyncio.to_thread(self._judge, task)
            except HeadraceError as error:
                LOG.warning("the student of task %s was not judged: %s", task, error.message)
            except Exception:
                LOG.exception("the student of task %s was not judged", task)

    async def _embed(self, task: str) -> None:
        """Give new examples of a task their vectors, when nothing else is computed."""
        account = Account("", KeyLimits())
        call = CallContext(request_id=new_request_id(), account=account, background=True)
        encoder = self._settings.encoder
        while rows := await asyncio.to_thread(without_vector, self.database, encoder, task):
            texts = [text for _, text in rows]
            vectors = await embedded(self._background, encoder, texts, call, BATCH_PRIORITY)
            await asyncio.to_thread(save_vectors, self.database, encoder, rows, vectors)

    def _judge(self, task: str) -> None:
        """Look at the student of a task; a person is told where it is ready now."""
        for row in self._registry.students("shadow", "promoted", task=task):
            later = task_examples(self.database, task, row.encoder, after=row.last_example)
            check_drift(self._store, row, later)
            if row.state == "promoted":
                continue
            asked = self.actions.written_now, self.actions.judge.compare
            if judge(self._registry, row, later, *asked) == "ready":
                tell_ready(self._store, row)

    def check(self, serves: Callable[[str], bool], is_remote: Callable[[str], bool]) -> None:
        """UsageError where a model that the loop needs is not served; the judge may be a provider's."""
        name = self._settings.judge
        if name is not None and not serves(name) and not is_remote(name):
            raise UsageError(
                f"adapt.judge is {name!r}, which is not served: add [models.{name}], start with "
                "--load-on-demand, or name PROVIDER/MODEL of a table of [providers] that has direct = true"
            )
        wanted = {"detector": self._settings.detector, "encoder": self._settings.encoder}
        if self._settings.base is not None:
            wanted["base"] = self._settings.base
        for setting, name in wanted.items():
            if not serves(name) and (setting, name) != ("detector", PATTERNS):
                remedy = f' or set adapt.detector = "{PATTERNS}"' if setting == "detector" else ""
                raise UsageError(
                    f"adapt.{setting} is {name!r}, which is not served: add [models.{name}], start with "
                    f"--load-on-demand{remedy}"
                )

    def handler(self, inner: Handler) -> Handler:
        """In front of what answers, which may be another one the next time."""
        if self._handler is None:
            self._handler = TrafficHandler(inner, self.collector, self._settings)
        self._handler.inner = inner
        return self._handler

    async def give_feedback(
        self,
        reply_id: str,
        score: float | None,
        is_accepted: bool | None,
        correction: str | None,
        call: CallContext,
    ) -> None:
        """Keep feedback on a reply. Raises UnknownReply, RateLimited, InvalidRequest."""
        feedback = Feedback(score=score, is_accepted=is_accepted, correction=correction)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self.collector.give(
            FeedbackGiven(
                reply_id=reply_id,
                call=call,
                feedback=feedback,
                is_admin=call.account.may("admin"),
                done=done,
            )
        )

    async def close(self) -> None:
        """Store what waits, and close the file."""
        await self.collector.close()
        self.actions.judge.close()
        if self._judging is not None:
            await asyncio.wait([self._judging], timeout=CLOSING_S)
        running = [one for one in (self._watching, self._judging, self._syncing) if one is not None]
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self.actions.close()
        await asyncio.to_thread(self.database.close)


def closed_because(gate: Gate) -> str:
    """Why a student may not answer any more."""
    if gate.calibration is None or not gate.audited:
        return gate.closed
    most = gate.calibration.certificate.risk
    return (
        f"{gate.wrong:,} of {gate.audited:,} of its answers that were checked were wrong, more than the "
        f"{most:.1%} of its certificate"
    )
