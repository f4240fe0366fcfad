"""Random numbers and arithmetic for sampling, defined so that native code can reproduce every rounding.

Exponentials and logarithms are polynomials. Probability masses are multiples of 2**-34, whose float64 sums
are exact and therefore the same in any order, on any number of threads, with any instruction set.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]

MAX_VOCABULARY = 2**19  # for larger vocabularies, sums of masses would round
LN_2 = 0.6931471805599453

# Random numbers. The noise of a token is a function of (seed, choice, position, token id) alone. It does
# not depend on the batch, on earlier draws or on truncation. A draft model that uses the same random
# numbers usually draws the same token, so its drafts are accepted more often.


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
    """A 64-bit key for the noise of all tokens at one position of one choice."""
    seed %= 2**64
    words = philox((position % 2**32, position >> 32, choice, 0), (seed % 2**32, seed >> 32))
    return words[0], words[1]


def coin(seed: int, choice: int, position: int) -> float:
    """A uniform number in [0, 1) per position of a choice, independent of all tokens' noise."""
    seed %= 2**64
    words = philox((position % 2**32, position >> 32, choice, 1), (seed % 2**32, seed >> 32))
    return words[0] * 2.0**-32


def token_bits(ids: Ids, key: tuple[int, int]) -> NDArray[np.uint32]:
    """32 random bits per id: a multiplicative hash of the id, keyed before and between the two
    multiplications of lowbias32 (constants: C. Wellons, "Prospecting for hash functions").
    """
    x = ids.astype(np.uint32) * np.uint32(0x9E3779B9) + np.uint32(key[0])
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = ((x ^ (x >> np.uint32(15))) + np.uint32(key[1])) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def gumbel(ids: Ids, key: tuple[int, int]) -> Doubles:
    """Standard Gumbel noise per id, between -3.2 and 22.9 (32 random bits each)."""
    v = (token_bits(ids, key).astype(np.float64) + 0.5) * 2.0**-32
    return -log(-log(1.0 - v))


# Arithmetic.


def log(x: Doubles) -> Doubles:
    """Natural logarithm of positive float64 numbers within a few units in the last place: 2 atanh(f)."""
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
    return exponent * LN_2 + (2.0 * f + tail)


def log_of(x: float) -> float:
    """`log` of a scalar."""
    return float(log(np.array([x], np.float64))[0])


def exp(x: Floats) -> Floats:
    """exp of float32 x <= 0 within 2e-7; clamped to exp(-30) below -30, where the mass is 0."""
    x = np.maximum(x, np.float32(-30.0))
    magic = np.float32(12582912.0)  # adding 1.5 * 2**23 rounds to an integer
    n = (x * np.float32(1.44269504) + magic) - magic
    r = (x - n * np.float32(0.693359375)) - n * np.float32(-2.12194440e-4)  # ln 2, split into two parts
    one = np.float32(1.0)
    p = np.full_like(x, one / np.float32(5040.0))
    for factorial in (720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        p = p * r + one / np.float32(factorial)
    return np.ldexp(p, n.astype(np.int32))


def masses(distance: Floats) -> Doubles:
    """exp(distance <= 0) rounded to multiples of 2**-34: sums of up to 2**19 terms are exact."""
    return np.rint(exp(distance).astype(np.float64) * 2.0**34) * 2.0**-34


def running_sum(x: Doubles) -> float:
    """The sum from first to last, rounding each addition; inexact sums need a fixed order."""
    return float(np.cumsum(x)[-1])


def exp_wide(x: float) -> float:
    """exp of a float64 in [-700, 700] within a few units in the last place."""
    magic = 6755399441055744.0  # adding 1.5 * 2**52 rounds to an integer
    n = (x * 1.4426950408889634 + magic) - magic
    r = (x - n * 0.693145751953125) - n * 1.4286068203094172e-06  # ln 2, split into two parts
    p = 1.0
    for divisor in range(14, 0, -1):
        p = 1.0 + p * r / divisor
    return math.ldexp(p, int(n))
