"""The definition of truncation, mirostat and temperature.

Sets of tokens are ids, likeliest first; ties go to the lowest id. Every stage keeps at least one token.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.sampling.deterministic_math import (
    LN_2,
    Doubles,
    Floats,
    Ids,
    exp_wide,
    log_of,
    masses,
    running_sum,
)
from headrace.sampling.params import SamplingParams

MIROSTAT_TOKENS = 100  # used by mirostat 1 to estimate the exponent of the distribution


def truncate(x: Floats, params: SamplingParams, coin: float = 1.0) -> Ids:
    """Ids kept by top_n_sigma, top_k, typical_p, top_p, min_p and xtc, in this order, for logits [V].

    `coin` in [0, 1) decides whether xtc applies.

    top_n_sigma (Tang et al. 2024) keeps x >= max - n * standard deviation, rounded to float32. top_k keeps
    exactly k. top_p keeps the shortest prefix whose share of the remaining mass is >= top_p. min_p keeps x
    >= max + log(min_p), rounded to float32.
    """
    order = np.argsort(-x, kind="stable")
    order = order[x[order] > -np.inf]
    if params.top_n_sigma > 0.0:
        values = x[np.sort(order)].astype(np.float64)
        mean = running_sum(values) / len(values)
        deviation = math.sqrt(running_sum((values - mean) * (values - mean)) / len(values))
        order = order[x[order] >= np.float32(np.float64(x[order[0]]) - params.top_n_sigma * deviation)]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.typical_p < 1.0:
        order = _typical(x, order, params.typical_p)
    top = x[order[0]]
    if params.top_p < 1.0:
        mass = np.cumsum(masses(x[order] - top))
        order = order[: 1 + np.count_nonzero(mass < params.top_p * mass[-1])]
    if params.min_p > 0.0:
        order = order[x[order] >= np.float32(np.float64(top) + math.log(params.min_p))]
    if coin < params.xtc_probability:
        mass = masses(x[order] - top)
        above = np.count_nonzero(mass >= params.xtc_threshold * mass.sum())
        order = order[max(int(above) - 1, 0) :]
    return order


def _typical(x: Floats, order: Ids, typical_p: float) -> Ids:
    """Locally typical sampling (Meister et al. 2023): the smallest set with mass `typical_p` of tokens
    whose surprise is closest to the expected one; ties go to the likelier token.
    """
    mass = masses(x[order] - x[order[0]])
    order, mass = order[mass > 0.0], mass[mass > 0.0]
    surprise, entropy = _surprises(x, order)
    ranked = np.argsort(np.abs(surprise - entropy), kind="stable")
    found = np.cumsum(mass[ranked])
    return order[np.sort(ranked[: 1 + np.count_nonzero(found < typical_p * found[-1])])]


def _surprises(x: Floats, order: Ids) -> tuple[Doubles, float]:
    """Surprises in nats (-log of the probability), and their expectation, summed in order of ids."""
    mass = masses(x[order] - x[order[0]])
    total = mass.sum()
    distance = np.float64(x[order[0]]) - x[order].astype(np.float64)
    surprise = distance + log_of(total)
    return surprise, running_sum((mass / total * surprise)[np.argsort(order)])


def temperature_of(x: Floats, kept: Ids, params: SamplingParams) -> float:
    """The temperature for the kept tokens: `temperature`; or with `dynatemp_range` (llama.cpp) between
    temperature - range and temperature + range, by their entropy relative to the maximum.
    """
    if params.dynatemp_range == 0.0:
        return params.temperature
    low = max(0.0, params.temperature - params.dynatemp_range)
    high = params.temperature + params.dynatemp_range
    if len(kept) == 1:
        return params.temperature
    entropy = _surprises(x, kept)[1]
    share = entropy / log_of(len(kept))
    power = exp_wide(max(params.dynatemp_exponent * log_of(share), -700.0)) if share > 0 else 0.0
    return low + (high - low) * power


def initial_mu(params: SamplingParams) -> float:
    """Mirostat's initial bound on surprise, in bits."""
    return 2.0 * params.mirostat_tau


def unsurprising(x: Floats, params: SamplingParams, mu: float) -> Ids:
    """Ids kept by mirostat (Basu et al. 2021) at `temperature`. Version 1 keeps as many tokens as would
    give surprise `mu` under a Zipf distribution; version 2 keeps tokens whose surprise is at most `mu`
    bits.
    """
    order = np.argsort(-x, kind="stable")
    order = order[x[order] > -np.inf]
    distance = _distances(x, order, params.temperature)
    if params.mirostat == 1:
        return order[: _zipf_count(distance, mu, len(x))]
    total = log_of(masses(distance.astype(np.float32)).sum())
    return order[: max(1, int(np.count_nonzero((total - distance) / LN_2 <= mu)))]


def next_mu(x: Floats, kept: Ids, token: int, params: SamplingParams, mu: float) -> float:
    """`mu` after `token` was drawn: moved by `mirostat_eta` times the error in surprise."""
    distance = _distances(x, kept, params.temperature)
    total = log_of(masses(distance.astype(np.float32)).sum())
    observed = (total - distance[kept == token][0]) / LN_2
    return float(mu - params.mirostat_eta * (observed - params.mirostat_tau))


def _distances(x: Floats, order: Ids, temperature: float) -> Doubles:
    """Logits divided by the temperature, minus the first one's: float64, <= 0."""
    return np.maximum((x[order].astype(np.float64) - np.float64(x[order[0]])) / temperature, -1e30)


def _zipf_count(distance: Doubles, mu: float, vocabulary: int) -> int:
    """k of mirostat 1: estimates the exponent s from the likeliest tokens, then applies equation 30."""
    products, squares = 0.0, 0.0
    for i in range(min(MIROSTAT_TOKENS, len(distance)) - 1):
        t = log_of((i + 2) / (i + 1))
        products += t * float(distance[i] - distance[i + 1])
        squares += t * t
    if products <= 0.0:  # only one token, or all equally likely
        return len(distance)
    s = products / squares
    epsilon, log_count = s - 1.0, log_of(vocabulary)
    if abs(epsilon) < 1e-9:
        ratio = 1.0 / log_count
    else:
        ratio = epsilon / (1.0 - exp_wide(min(max(-epsilon * log_count, -700.0), 700.0)))
    log_k = (log_of(ratio) + mu * LN_2) / s
    return int(exp_wide(min(max(log_k, 0.0), log_of(len(distance)))))
