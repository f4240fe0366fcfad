"""What a model's output rows say of inputs, whatever its head is, as vLLM's pooling models give it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Literal

import numpy as np

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest, Prompt, Truncation
from headrace.ops.value import Array
from headrace.tasks.few_shot import fitted_logits
from headrace.tasks.label_scores import activated
from headrace.tasks.task_limits import check_numbers

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]
_AT_A_TIME = 32
"""Inputs whose vectors are in memory together while they are computed."""
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
    truncate: bool | Truncation = False,
    most: int,
) -> list[Array]:
    """Of each input a vector [size], or [tokens, size] by tasks of tokens; scores as probabilities, with
    `activation` False as logits. `task` None is what the model does. More than `most` numbers are refused.

    Raises InvalidRequest where the model does not do the task, or generates text.
    """
    able = (task,) if task else ("embed", *_TASKS)  # an error names the first
    async with runner.lease(name, call, *able) as model:
        asked: PoolingTask = task or next(one for one in _TASKS if one in model.tasks)
        scores = asked in ("classify", "token_classify")
        if scores and dimensions is not None:
            raise InvalidRequest(
                f"{model.name} gives a score for each of its labels, which have no dimensions: leave"
                " dimensions out",
                param="dimensions",
            )
        request = EmbeddingRequest(
            id=new_id(),
            model=model.name,
            inputs=tuple(inputs),
            task=asked,
            dimensions=dimensions,
            truncate=truncate,
        )
        rows: list[Array] = []
        async with aclosing(runner.portions(request, call, _AT_A_TIME)) as portions:
            async for part in portions:
                rows += part
                check_numbers(rows, len(inputs), most, "input")
        if model.head is not None and model.head.kind == "fitted":
            rows = [fitted_logits(model, one) for one in rows]
        if scores and activation:
            assert model.head is not None
            rows = [activated(one, model.head.activation).astype(np.float32) for one in rows]
    if asked in ("embed", "classify"):
        return [one[0] for one in rows]
    return rows
