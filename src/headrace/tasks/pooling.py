"""What a model's output rows say of inputs, whatever its head is, as vLLM's pooling models give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest, Prompt
from headrace.ops.value import Array
from headrace.tasks.label_scores import activated

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]
_TASKS: tuple[PoolingTask, ...] = ("token_embed", "embed", "classify", "token_classify")


async def pool(
    runner: ModelRunner,
    name: str | None,
    inputs: Sequence[Prompt],
    call: CallContext,
    *,
    task: PoolingTask | None = None,
    activation: bool = True,
    dimensions: int | None = None,
    truncate: bool = False,
    max_tokens: int | None = None,
) -> list[Array]:
    """Of each input a vector [size], or [tokens, size] by tasks of tokens; scores as probabilities, with
    `activation` False as logits. `task` None is what the model does.

    Raises InvalidRequest where the model does not do the task, or generates text.
    """
    async with runner.lease(name, call, *((task,) if task else _TASKS)) as model:
        asked: PoolingTask = task or next(one for one in _TASKS if one in model.tasks)
        request = EmbeddingRequest(
            id=new_id(),
            model=model.name,
            inputs=tuple(inputs),
            task=asked,
            dimensions=dimensions,
            truncate=truncate,
            max_tokens=max_tokens,
        )
        rows = await runner.rows(request, call)
        if asked in ("classify", "token_classify") and activation:
            assert model.head is not None
            rows = [activated(one, model.head.activation).astype(np.float32) for one in rows]
    if asked in ("embed", "classify"):
        return [one[0] for one in rows]
    return rows
