"""The definition of sampling in NumPy. The native sampler must return the same tokens, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import InvalidRequest, NumericalError
from headrace.sampling.deterministic_math import Floats, Ids, coin, gumbel, log, masses, token_key
from headrace.sampling.params import SamplingParams
from headrace.sampling.penalties import adjust
from headrace.sampling.processors import initial_mu, next_mu, temperature_of, truncate, unsurprising


class ReferenceSample(Struct, frozen=True):
    """A token; if `logprobs` is set, its log-probability and the likeliest tokens; with mirostat, the bound
    on surprise for the next token.
    """

    token: int
    logprob: float = math.nan
    top: tuple[tuple[int, float], ...] = ()
    mu: float = math.nan


@np.errstate(over="ignore")  # infinite distances are handled like large ones
def sample(
    logits: Floats,
    params: SamplingParams,
    *,
    seed: int = 0,
    choice: int = 0,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
    eos_ids: Collection[int] = (),
    allowed: NDArray[np.uint32] | None = None,
    bad_words: Collection[Sequence[int]] = (),
    history: Sequence[int] = (),
    mu: float | None = None,
) -> ReferenceSample:
    """Draw one token from logits [V].

    The token has index `len(output_ids)` in its choice. `allowed` has bit `id % 32` of word `id // 32` set
    for each id that may be drawn. `bad_words` are token sequences. `history` is the input of DRY: prompt
    and output, with penalties.BREAK where a sequence breaker ends. `mu` is mirostat's value after the
    previous token; None for the first.

    Raises NumericalError if a logit is NaN or +inf, or all are -inf; InvalidRequest if no token is left, or
    if logit_bias has an id outside the vocabulary.
    """
    if np.isnan(logits).any() or logits.max() in (np.inf, -np.inf):
        raise NumericalError("the logits of a row are not finite")
    position = len(output_ids)
    adjusted = adjust(logits, params, prompt_ids, output_ids, history)
    adjusted[suppressed(len(logits), params, output_ids, eos_ids, allowed, bad_words)] = -np.inf
    if adjusted.max() == -np.inf:
        raise InvalidRequest("no token is left to draw")
    mu = initial_mu(params) if mu is None else mu
    if params.mirostat:
        kept, temperature = unsurprising(adjusted, params, mu), params.temperature
    else:
        kept = truncate(adjusted, params, coin(seed, choice, position))
        temperature = temperature_of(adjusted, kept, params)
    token = draw(adjusted, kept, temperature, token_key(seed, choice, position))
    if params.mirostat:
        mu = next_mu(adjusted, kept, token, params, mu)
    if params.logprobs is None:
        return ReferenceSample(token, mu=mu)
    logprobs = log_softmax(logits)
    order = np.argsort(-logits, kind="stable")[: params.logprobs]
    order = order[logits[order] > -np.inf]
    return ReferenceSample(
        token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in order), mu
    )


def suppressed(
    vocabulary: int,
    params: SamplingParams,
    output_ids: Sequence[int],
    eos_ids: Collection[int],
    allowed: NDArray[np.uint32] | None,
    bad_words: Collection[Sequence[int]] = (),
) -> NDArray[np.bool_]:
    """True [V] for tokens that must not be drawn: before min_tokens all that would end the text (stop ids,
    and eos ids unless ignore_eos); the last token of a bad word whose other tokens were just generated;
    and tokens not in `allowed`.
    """
    out = np.zeros(vocabulary, bool)
    if len(output_ids) < params.min_tokens:
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)}
        out[[token for token in ends if 0 <= token < vocabulary]] = True
    for *start, end in bad_words:
        if list(output_ids[len(output_ids) - len(start) :]) == start and len(start) <= len(output_ids):
            out[end] = True
    if allowed is not None:
        ids = np.arange(vocabulary)
        out |= (allowed[ids // 32] >> (ids % 32).astype(np.uint32)) & 1 == 0
    return out


def draw(x: Floats, kept: Ids, temperature: float, key: tuple[int, int]) -> int:
    """The kept id with the largest (x - max) / temperature + Gumbel noise: a sample from the softmax
    (Gumbel-max; Yellott 1977). Temperature 0 is the argmax. Ties go to the lowest id.
    """
    top = x[kept].max()
    if temperature == 0.0:
        return int(kept[x[kept] == top].min())
    ids = np.sort(kept)
    distance = (x[ids].astype(np.float64) - np.float64(top)) / np.float64(temperature)
    return int(ids[np.argmax(distance + gumbel(ids, key))])


def log_softmax(x: Floats) -> Floats:
    """Natural-log probabilities [V] as float32."""
    top = x.max()
    total = np.float64(masses(x - top).sum())
    return ((x.astype(np.float64) - np.float64(top)) - log(np.array([total]))[0]).astype(np.float32)
