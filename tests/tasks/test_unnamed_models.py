"""Tasks without a model's name: the rows come from the model that was found, not from the default one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from headrace.inference.keywords import new_call
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest
from headrace.tasks.classify import classify
from headrace.tasks.late_interaction import token_vectors
from headrace.tasks.sparse import sparse
from headrace.tasks.zero_shot import zero_shot
from headrace.weights.head import Head


class Recorder:
    """A runner that finds the model `able` and notes which one is asked for rows."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    @asynccontextmanager
    async def lease(self, name: str | None, *_: object) -> AsyncGenerator[Any]:
        rules = SimpleNamespace(late_interaction=None)
        yield SimpleNamespace(name="able", head=Head(kind="classify", labels=("a", "b")), input_rules=rules)

    async def in_thread(self, model: object, work: Callable[[], Any]) -> Any:
        return work()

    async def rows(self, request: EmbeddingRequest, call: object) -> list[Any]:
        self.asked.append(request.model)
        return [np.ones((1, 2), np.float32) for _ in request.inputs]

    async def portions(self, request: EmbeddingRequest, call: object, size: int) -> AsyncGenerator[list[Any]]:
        yield await self.rows(request, call)


@pytest.mark.parametrize("task", [classify, sparse, token_vectors])
def test_the_model_that_was_found_computes(task: Callable[..., Coroutine[Any, Any, Any]]) -> None:
    recorder = Recorder()
    asyncio.run(task(cast(ModelRunner, recorder), None, ["text"], new_call()))
    assert recorder.asked == ["able"]


class Server:
    """A runner of named heads; a lease without a name is the first one's."""

    def __init__(self, heads: dict[str, Head]) -> None:
        self.heads, self.leased = heads, list[str | None]()

    def able(self, *tasks: str) -> str | None:
        return next((name for name, head in self.heads.items() if set(tasks) & set(head.tasks)), None)

    @asynccontextmanager
    async def lease(self, name: str | None, *_: object) -> AsyncGenerator[Any]:
        self.leased.append(name)
        head = self.heads[name or next(iter(self.heads))]
        yield SimpleNamespace(name=name, head=head, tasks=head.tasks)

    async def rows(self, request: EmbeddingRequest, call: object) -> list[Any]:
        return [np.ones((1, 3), np.float32) for _ in request.inputs]


def test_labels_of_your_own_go_to_the_first_model_of_entailment() -> None:
    emotions = Head(kind="classify", labels=("joy", "anger", "fear"))
    server = Server(
        {"emotions": emotions, "nli": Head(kind="classify", labels=("no", "maybe", "ENTAILMENT"))}
    )
    found = asyncio.run(zero_shot(cast(ModelRunner, server), None, ["text"], ["a", "b"], new_call()))
    assert server.leased == ["nli", "nli"] and found[0].labels == ("a", "b")
