"""How likely given texts are after given prompts, by a decoder; nothing is generated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.errors import EngineStopped
from headrace.inference.call_context import CallContext
from headrace.inference.handler import open_stream
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import ScoringRequest
from headrace.inference.result import collect

_AT_A_TIME = 256  # prompts in the queue of the engine
Ids = tuple[int, ...]


async def continuation_logprobs(
    runner: ModelRunner,
    name: str | None,
    prompts: Sequence[Ids],
    continuations: Sequence[Ids],
    call: CallContext,
) -> NDArray[np.float64]:
    """[prompts, continuations]: the sums of the natural-log probabilities of the continuations' tokens after
    each prompt, which is computed once."""
    found: list[tuple[float, ...]] = []
    for start in range(0, len(prompts), _AT_A_TIME):
        request = ScoringRequest(
            id=new_id(),
            model=name,
            prompts=tuple(prompts[start : start + _AT_A_TIME]),
            continuations=tuple(continuations),
        )
        result = await collect(await open_stream(runner.handler, request, call))
        for prompt in result.prompts:
            if not prompt.continuations:
                raise EngineStopped("the request was cancelled before its prompt was scored")
            found.append(prompt.continuations)
    return np.array(found, np.float64)
