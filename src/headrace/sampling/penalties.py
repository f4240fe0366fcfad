"""Logits changed by what came before: the definition of bias, penalties and DRY."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from headrace.errors import InvalidRequest
from headrace.sampling.deterministic_math import Floats
from headrace.sampling.params import SamplingParams

MIN_REPETITION_PENALTY = 1e-30  # smaller ones would be 0 in float32, and 0 * -inf has no value
MAX_DRY_PENALTY = 1e30
BREAK = -1  # in the history of DRY, in the place of a token in which a sequence breaker ends


def adjust(
    logits: Floats,
    params: SamplingParams,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    history: Sequence[int] = (),
) -> Floats:
    """Logit bias; repetition penalty (CTRL, Keskar et al. 2019) over prompt and output; presence and
    frequency penalties (OpenAI) over the output, all three over no more than the last `repeat_last_n` tokens;
    DRY over `history`. Returns a new array, all in float32."""
    x = logits.copy()
    for token, bias in params.logit_bias.items():
        if token >= len(x):
            raise InvalidRequest(f"logit_bias[{token}]: ids are below {len(x)}", param="logit_bias")
        x[token] += np.float32(bias)
    everything = last([*prompt_ids, *output_ids], params.repeat_last_n)
    generated = everything[max(len(everything) - len(output_ids), 0) :]
    repetition = np.float32(max(params.repetition_penalty, MIN_REPETITION_PENALTY))
    if params.repetition_penalty != 1.0:
        for token in set(everything):
            x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
    for token, count in Counter(generated).items():
        x[token] -= np.float32(params.presence_penalty)
        x[token] -= np.float32(params.frequency_penalty) * np.float32(count)
    x = np.minimum(x, np.finfo(np.float32).max)
    for token, penalty in dry_penalties(history, params).items():
        x[token] -= np.float32(penalty)
    return x


def last(ids: list[int], count: int) -> list[int]:
    """The last `count` ids, all where it is negative."""
    return ids if count < 0 else ids[max(len(ids) - count, 0) :]


def dry_penalties(history: Sequence[int], params: SamplingParams) -> dict[int, float]:
    """What DRY ("don't repeat yourself", p-e-w 2024) takes off the logits of tokens that would prolong a
    repetition: multiplier * base ** (length - allowed_length), where the last `length` tokens have been
    followed by the token before. `history` is prompt and output, with BREAK where no repetition goes on."""
    if params.dry_multiplier == 0.0:
        return {}
    seen = last(list(history), params.dry_penalty_last_n)
    longest: dict[int, int] = {}
    for end in range(1, len(seen)):  # what came before `end` against the end of all
        length = 0
        while length < end and seen[end - 1 - length] == seen[-1 - length] != BREAK:
            length += 1
        if seen[end] != BREAK and length >= params.dry_allowed_length:
            longest[seen[end]] = max(length, longest.get(seen[end], 0))
    return {token: _dry_penalty(length, params) for token, length in longest.items()}


def _dry_penalty(length: int, params: SamplingParams) -> float:
    penalty = params.dry_multiplier
    for _ in range(length - params.dry_allowed_length):
        penalty *= params.dry_base
        if penalty >= MAX_DRY_PENALTY:
            return MAX_DRY_PENALTY
    return penalty
