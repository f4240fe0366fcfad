"""The adaptive loop within a server: made where the table `[adapt]` is enabled, imported nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from headrace.adapt.collector import PATTERNS, Collector, FeedbackGiven
from headrace.adapt.examples import ExampleStore, Feedback
from headrace.adapt.schema import open_adapt
from headrace.adapt.traffic import TrafficHandler
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import UsageError
from headrace.inference.call_context import CallContext
from headrace.inference.handler import Handler
from headrace.inference.model_runner import ModelRunner


class Adapting:
    """Collects what passes `handler(inner)`. Lives on the event loop; `close` it there."""

    def __init__(self, settings: AdaptSettings, store: Path | None, runner: ModelRunner) -> None:
        self._settings = settings
        self.database = open_adapt(store)
        self.collector = Collector(ExampleStore(self.database), settings, runner)
        self._handler: TrafficHandler | None = None

    def check(self, serves: Callable[[str], bool]) -> None:
        """UsageError where a model that the loop needs is not served."""
        for setting, name in (("detector", self._settings.detector), ("encoder", self._settings.encoder)):
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
        await asyncio.to_thread(self.database.close)
