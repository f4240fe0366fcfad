"""The definition of logit bias, repetition penalties and DRY."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from headrace.errors import InvalidRequest
from headrace.sampling.deterministic_math import Floats
from headrace.sampling.params import SamplingParams

MIN_REPETITION_PENALTY = 1e-30  # a smaller value would be 0 in float32, and 0 * -inf is NaN
MAX_DRY_PENALTY = 1e30
BREAK = -1  # replaces, in the history of DRY, a token in which a sequence breaker ends


def adjust(
    logits: Floats,
    params: SamplingParams,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    history: Sequence[int] = (),
) -> Floats:
    """Apply logit bias; repetition penalty (CTRL, Keskar et al. 2019) over prompt and output; presence and
    frequency penalties (OpenAI) over the output; all three over at most the last `repeat_last_n` tokens;
    DRY over `history`. Returns a new array; all arithmetic is float32.
    """
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
    """The last `count` ids; all if `count` is negative."""
    return ids if count < 0 else ids[max(len(ids) - count, 0) :]


def dry_penalties(history: Sequence[int], params: SamplingParams) -> dict[int, float]:
    """DRY ("don't repeat yourself", p-e-w 2024): the penalty for each token that would extend a repetition,
    multiplier * base ** (length - allowed_length), where `length` is the longest match of the last
    tokens that this token followed before. `history` is prompt and output, with BREAK where matches must
    end.
    """
    if params.dry_multiplier == 0.0:
        return {}
    seen = last(list(history), params.dry_penalty_last_n)
    longest: dict[int, int] = {}
    for end in range(1, len(seen)):  # compare the tokens before `end` with the last tokens
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
