"""What tasks use of a model besides its answers: tokenizer, head, threads, and the rows that it computes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from headrace.engine.turns import BATCH_PRIORITY
from headrace.errors import EngineStopped, InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.handler import EventBatches, Handler, open_stream
from headrace.inference.model_source import ModelSource, ModelThreads
from headrace.inference.requests import EmbeddingRequest, InferenceRequest
from headrace.inference.result import collect
from headrace.ops.value import Array
from headrace.weights.head import TaskName

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

T = TypeVar("T")
_AT_A_TIME = 1024  # inputs in the queue of the engine, which has room for a few thousand

TASK_WORDS: Mapping[TaskName, str] = {
    "generate": "generate text",
    "embed": "embed texts",
    "token_embed": "make a vector of each token",
    "sparse_embed": "make sparse vectors",
    "classify": "classify texts",
    "token_classify": "classify tokens",
    "entities": "find entities by labels",
    "rerank": "rank documents for a query",
    "zero_shot": "classify by labels of your own",
}
"""What a model can do, after the word "can"."""


def can_do(tasks: Iterable[TaskName]) -> str:
    """The tasks in words."""
    return " and ".join(TASK_WORDS[task] for task in tasks)


def check_tasks(model: LoadedModel, *tasks: TaskName) -> None:
    """InvalidRequest where the model can do none of `tasks`."""
    if not set(tasks) & set(model.tasks):
        zero_shot = tasks[0] == "classify" and {"zero_shot", "embed", "generate"} & set(model.tasks)
        raise InvalidRequest(
            f"{model.name} cannot {TASK_WORDS[tasks[0]]}, it can {can_do(model.tasks)}: name a model that"
            f" can{', or give labels of your own' if zero_shot else ''}",
            param="model",
        )


class UrgencyHandler:
    """Sends every request to `inner` with one priority and deadline, as `InferenceRequest` has them."""

    def __init__(self, inner: Handler, priority: int, deadline_s: float | None) -> None:
        self._inner, self._priority, self._deadline_s = inner, priority, deadline_s

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`."""
        urgent = replace(request, priority=self._priority, deadline_s=self._deadline_s)
        return self._inner.handle(urgent, call)


class ModelRunner:
    """A handler together with the models behind it. Lives on the event loop."""

    def __init__(
        self, handler: Handler, models: ModelSource, threads: ModelThreads, *, batch: bool = False
    ) -> None:
        """`batch`: its work in threads is of class batch, too."""
        self.handler = handler
        self._models, self._threads, self._batch = models, threads, batch

    def urgent(self, priority: int, deadline_s: float | None = None) -> ModelRunner:
        """The same with a priority, and a deadline, of all that it computes."""
        if priority == 0 and deadline_s is None:
            return self
        handler, batch = UrgencyHandler(self.handler, priority, deadline_s), priority >= BATCH_PRIORITY
        return ModelRunner(handler, self._models, self._threads, batch=batch)

    def able(self, *tasks: TaskName) -> str | None:
        """The first model that can do one of `tasks`, None where no model is known to."""
        return self._models.able(*tasks)

    @asynccontextmanager
    async def lease(
        self, name: str | None, call: CallContext, *tasks: TaskName
    ) -> AsyncGenerator[LoadedModel]:
        """The model of that name, in memory until the block ends; None: the first that can do one of `tasks`,
        or the default one.

        Raises InvalidRequest where it can do none of `tasks`, ModelNotFound, ModelLoading, Overloaded.
        """
        if name is None and tasks:
            name = self._models.able(*tasks)
        model, release = await self._models.acquire(name, None, call)
        try:
            if tasks:
                check_tasks(model, *tasks)
            yield model
        finally:
            call.when_ended(release)

    async def in_thread(self, model: LoadedModel, work: Callable[[], T]) -> T:
        """Run `work`, such as tokenizing long texts, in a thread of the model."""
        return await self._threads.run(model, work, batch=self._batch)

    async def rows(self, request: EmbeddingRequest, call: CallContext) -> list[Array]:
        """Of each input what the model computes: [1, size], or [tokens, size]. As float32, read-only.

        Any number of inputs; if one fails its error is raised and the others are cancelled.
        """
        return [row async for part in self.portions(request, call) for row in part]

    async def portions(
        self, request: EmbeddingRequest, call: CallContext, size: int = _AT_A_TIME
    ) -> AsyncGenerator[list[Array]]:
        """As `rows`, of so many inputs at a time: for rows that are too large to be all in memory."""
        for start in range(0, len(request.inputs), size):
            part = replace(
                request,
                id=f"{request.id}-{start}",
                inputs=request.inputs[start : start + size],
                first_input=request.first_input + start,
                input_names=request.input_names[start : start + size],
            )
            result = await collect(await open_stream(self.handler, part, call))
            found: list[Array] = []
            for one in result.prompts:
                if one.embedding is None:
                    raise EngineStopped("the text was cancelled before it was computed")
                found.append(one.embedding.vectors)
            yield found
