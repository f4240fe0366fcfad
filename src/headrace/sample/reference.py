"""The definition of sampling in NumPy: the native sampler must give the same token, bit for bit.

Every rounding is pinned so that it can: exponentials are one float32 polynomial, logarithms one
float64 series, and probability masses are multiples of 2**-34, whose float64 sums are exact and
therefore the same in any order, on any number of threads, with any instruction set.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InvalidRequest, NumericalError
from headrace.sample.params import SamplingParams

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]

MAX_VOCABULARY = 2**19  # above it, sums of masses would round
MIN_REPETITION_PENALTY = 1e-30  # smaller ones would be 0 in float32, and 0 * -inf has no value


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token; with `logprobs` asked for, its log-probability and the likeliest tokens."""

    token: int
    logprob: float = math.nan
    top: tuple[tuple[int, float], ...] = ()


@np.errstate(over="ignore")  # an infinite distance is as good as a large one
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
) -> Drawn:
    """Draw one token from logits [V].

    The token is number `len(output_ids)` of its choice. `allowed` has bit `id % 32` of word `id // 32`
    set for each id that may be drawn. NumericalError where a logit is NaN or +inf, or all are -inf;
    InvalidRequest where suppression leaves no token, or logit_bias names none of the V ids.
    """
    if np.isnan(logits).any() or logits.max() in (np.inf, -np.inf):
        raise NumericalError("the logits of a row are not finite")
    adjusted = adjust(logits, params, prompt_ids, output_ids)
    adjusted[suppressed(len(logits), params, len(output_ids), eos_ids, allowed)] = -np.inf
    if adjusted.max() == -np.inf:
        raise InvalidRequest("no token is left to draw")
    kept = truncate(adjusted, params)
    token = draw(adjusted, kept, params.temperature, token_key(seed, choice, len(output_ids)))
    if params.logprobs is None:
        return Drawn(token)
    logprobs = log_softmax(logits)
    order = np.argsort(-logits, kind="stable")[: params.logprobs]
    order = order[logits[order] > -np.inf]
    return Drawn(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in order))


def adjust(
    logits: Floats, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Sequence[int]
) -> Floats:
    """Logit bias; repetition penalty (CTRL, Keskar et al. 2019) over prompt and output; presence and
    frequency penalties (OpenAI) over the output. Returns a new array, all in float32."""
    x = logits.copy()
    for token, bias in params.logit_bias.items():
        if token >= len(x):
            raise InvalidRequest(f"logit_bias[{token}]: ids are below {len(x)}", param="logit_bias")
        x[token] += np.float32(bias)
    repetition = np.float32(max(params.repetition_penalty, MIN_REPETITION_PENALTY))
    if params.repetition_penalty != 1.0:
        for token in {*prompt_ids, *output_ids}:
            x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
    for token, count in Counter(output_ids).items():
        x[token] -= np.float32(params.presence_penalty)
        x[token] -= np.float32(params.frequency_penalty) * np.float32(count)
    return np.minimum(x, np.finfo(np.float32).max)


def suppressed(
    vocabulary: int,
    params: SamplingParams,
    position: int,
    eos_ids: Collection[int],
    allowed: NDArray[np.uint32] | None,
) -> NDArray[np.bool_]:
    """True [V] where a token must not be drawn: before min_tokens whatever would end the text (stop
    ids, and eos ids unless ignore_eos), and what `allowed` leaves out."""
    out = np.zeros(vocabulary, bool)
    if position < params.min_tokens:
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)}
        out[[token for token in ends if 0 <= token < vocabulary]] = True
    if allowed is not None:
        ids = np.arange(vocabulary)
        out |= (allowed[ids // 32] >> (ids % 32).astype(np.uint32)) & 1 == 0
    return out


def truncate(x: Floats, params: SamplingParams) -> Ids:
    """The ids that top_k, then top_p, then min_p keep, likeliest first; equal logits: lowest id first.

    top_k keeps exactly k. top_p keeps the shortest head of that order whose share of the mass that
    top_k left is >= top_p. min_p keeps x >= max + log(min_p), rounded to float32. At least one stays.
    """
    order = np.argsort(-x, kind="stable")
    order = order[x[order] > -np.inf]
    if params.top_k > 0:
        order = order[: params.top_k]
    top = x[order[0]]
    if params.top_p < 1.0:
        mass = np.cumsum(masses(x[order] - top))
        order = order[: 1 + np.count_nonzero(mass < params.top_p * mass[-1])]
    if params.min_p > 0.0:
        order = order[x[order] >= np.float32(np.float64(top) + math.log(params.min_p))]
    return order


def draw(x: Floats, kept: Ids, temperature: float, key: tuple[int, int]) -> int:
    """The kept id with the largest (x - max) / temperature + Gumbel noise: a sample of the softmax
    (Gumbel-max; Yellott 1977). Temperature 0 is the argmax. Ties go to the lowest id."""
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


# Random numbers. The noise of a token is a function of (seed, choice, position, token id) alone: it does not
# depend on the batch, on earlier draws or on what truncation removed, and a draft model that draws
# with the same numbers usually draws the same token, which is what makes its drafts acceptable.


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def token_key(seed: int, choice: int, position: int) -> tuple[int, int]:
    """64 bits that key the noise of all tokens at one position of one choice."""
    seed %= 2**64
    words = philox((position % 2**32, position >> 32, choice, 0), (seed % 2**32, seed >> 32))
    return words[0], words[1]


def token_bits(ids: Ids, key: tuple[int, int]) -> NDArray[np.uint32]:
    """32 random bits for each id: a multiplicative hash of the id, keyed before and between the two
    multiplications of lowbias32 (constants: C. Wellons, "Prospecting for hash functions")."""
    x = ids.astype(np.uint32) * np.uint32(0x9E3779B9) + np.uint32(key[0])
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = ((x ^ (x >> np.uint32(15))) + np.uint32(key[1])) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def gumbel(ids: Ids, key: tuple[int, int]) -> Doubles:
    """Standard Gumbel noise for each id, between -3.2 and 22.9 (32 random bits each)."""
    v = (token_bits(ids, key).astype(np.float64) + 0.5) * 2.0**-32
    return -log(-log(1.0 - v))


# Arithmetic, spelled out so that native code can repeat each rounding.


def log(x: Doubles) -> Doubles:
    """Natural logarithm of positive float64 within a few units in the last place: 2 atanh(f)."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < 0.7071067811865476
    mantissa = np.where(low, 2.0 * mantissa, mantissa)
    exponent = (exponent - low).astype(np.float64)
    f = (mantissa - 1.0) / (mantissa + 1.0)
    square = f * f
    series = np.full_like(x, 1.0 / 21.0)
    for odd in range(19, 2, -2):
        series = series * square + 1.0 / odd
    tail = 2.0 * f * (square * series)
    return exponent * 0.6931471805599453 + (2.0 * f + tail)


def exp(x: Floats) -> Floats:
    """exp of float32 x <= 0 within 2e-7; below -30 it stays at exp(-30), whose mass is 0."""
    x = np.maximum(x, np.float32(-30.0))
    magic = np.float32(12582912.0)  # adding 1.5 * 2**23 rounds to an integer
    n = (x * np.float32(1.44269504) + magic) - magic
    r = (x - n * np.float32(0.693359375)) - n * np.float32(-2.12194440e-4)  # ln 2 in two parts
    one = np.float32(1.0)
    p = np.full_like(x, one / np.float32(5040.0))
    for factorial in (720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        p = p * r + one / np.float32(factorial)
    return np.ldexp(p, n.astype(np.int32))


def masses(distance: Floats) -> Doubles:
    """exp(distance <= 0) rounded to multiples of 2**-34, so that sums of up to 2**19 of them are exact."""
    return np.rint(exp(distance).astype(np.float64) * 2.0**34) * 2.0**-34
