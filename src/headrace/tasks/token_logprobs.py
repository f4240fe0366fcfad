"""How likely given tokens are after given prompts, by a decoder; nothing is sampled.

One token is allowed at each place, and its log-probability is that before the restriction. Prompts with the
same beginning share its keys and values in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import EngineStopped
from headrace.inference.call_context import CallContext
from headrace.inference.handler import open_stream
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import CompletionRequest
from headrace.inference.result import collect

_AT_A_TIME = 256  # prompts in the queue of the engine
Ids = tuple[int, ...]


async def token_logprobs(
    runner: ModelRunner, name: str | None, prompts: Sequence[Ids], token: int, call: CallContext
) -> list[float]:
    """The natural log-probability of `token` as the next one of each prompt, over the whole vocabulary."""
    found: list[float] = []
    for start in range(0, len(prompts), _AT_A_TIME):
        request = CompletionRequest(
            id=new_id(),
            model=name,
            prompts=tuple(prompts[start : start + _AT_A_TIME]),
            sampling=_forced(token),
        )
        result = await collect(await open_stream(runner.handler, request, call))
        for prompt in result.prompts:
            logprobs = prompt.choices[0].logprobs
            if not logprobs:
                raise EngineStopped("the request was cancelled before its prompt was scored")
            found.append(logprobs[0].logprob)
    return found


def _forced(token: int) -> dict[str, object]:
    return {
        "n": 1,
        "max_tokens": 1,
        "min_tokens": 0,
        "temperature": 0.0,
        "logprobs": 0,
        "allowed_token_ids": (token,),
        "ignore_eos": True,
    }


async def label_logprobs(
    runner: ModelRunner, name: str | None, prompt: Ids, labels: Sequence[Ids], call: CallContext
) -> list[float]:
    """The log-probability of each label's tokens after `prompt`: the sum over its tokens.

    A token that several labels have after the same beginning is scored once.
    """
    wanted: dict[int, set[Ids]] = {}
    for label in labels:
        for place, token in enumerate(label):
            wanted.setdefault(token, set()).add(label[:place])
    known: dict[tuple[Ids, int], float] = {}
    for token, beginnings in sorted(wanted.items()):
        ordered = sorted(beginnings)
        scores = await token_logprobs(runner, name, [prompt + one for one in ordered], token, call)
        known |= {(one, token): score for one, score in zip(ordered, scores, strict=True)}
    return [sum(known[label[:place], token] for place, token in enumerate(label)) for label in labels]
