"""What tasks use of a model besides its answers: tokenizer, head, threads, and the rows that it computes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from headrace.errors import EngineStopped, InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.handler import Handler, open_stream
from headrace.inference.model_source import ModelSource, ModelThreads
from headrace.inference.requests import EmbeddingRequest
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
        zero_shot = tasks[0] == "classify" and {"embed", "generate"} & set(model.tasks)
        raise InvalidRequest(
            f"{model.name} cannot {TASK_WORDS[tasks[0]]}, it can {can_do(model.tasks)}: name a model that"
            f" can{', or give labels of your own' if zero_shot else ''}",
            param="model",
        )


class ModelRunner:
    """A handler together with the models behind it. Lives on the event loop."""

    def __init__(self, handler: Handler, models: ModelSource, threads: ModelThreads) -> None:
        self.handler = handler
        self._models, self._threads = models, threads

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
        return await self._threads.run(model, work)

    async def rows(self, request: EmbeddingRequest, call: CallContext) -> list[Array]:
        """Of each input what the model computes: [1, size], or [tokens, size]. As float32, read-only.

        Any number of inputs; if one fails its error is raised and the others are cancelled.
        """
        found: list[Array] = []
        for start in range(0, len(request.inputs), _AT_A_TIME):
            part = replace(
                request, id=f"{request.id}-{start}", inputs=request.inputs[start : start + _AT_A_TIME]
            )
            result = await collect(await open_stream(self.handler, part, call))
            for one in result.prompts:
                if one.embedding is None:
                    raise EngineStopped("the text was cancelled before it was computed")
                found.append(one.embedding.vectors)
        return found
