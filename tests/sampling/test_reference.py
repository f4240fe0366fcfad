"""The definition of sampling against published vectors, formulas and distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.errors import InvalidRequest, NumericalError
from headrace.sampling import deterministic_math as pinned
from headrace.sampling import penalties, reference
from headrace.sampling import processors as chain
from headrace.sampling.params import SamplingParams

ALL = 0xFFFFFFFF


def critical(degrees: int, sigmas: float = 4.5) -> float:
    """Upper bound of a chi-square statistic (Wilson and Hilferty 1931); `sigmas` 4.5 is p = 3e-6."""
    return degrees * (1 - 2 / (9 * degrees) + sigmas * math.sqrt(2 / (9 * degrees))) ** 3


def chi_square(counts: np.ndarray, expected: np.ndarray | float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # kat_vectors of Random123
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ALL, ALL, ALL, ALL), (ALL, ALL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_its_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    assert pinned.philox(counter, key) == words


def test_keys_differ_in_every_argument() -> None:
    base = (3, 1, 4)
    keys = {
        pinned.token_key(*base),
        pinned.token_key(3 + 2**32, 1, 4),
        pinned.token_key(-3, 1, 4),
        pinned.token_key(3, 2, 4),
        pinned.token_key(3, 1, 5),
        pinned.token_key(3, 1, 4 + 2**32),
    }
    assert len(keys) == 6
    assert pinned.token_key(-3, 1, 4) == pinned.token_key(2**64 - 3, 1, 4)


def test_log_and_exp_are_accurate() -> None:
    x = np.concatenate([np.geomspace(1e-10, 1e6, 20001), 1.0 - np.geomspace(1e-10, 0.5, 20001)])
    x = x[x != 1.0]
    assert np.abs(pinned.log(x) / np.log(x) - 1.0).max() < 4e-15
    y = np.linspace(-30, 0, 100001, dtype=np.float32)
    assert np.abs(pinned.exp(y) / np.exp(y.astype(np.float64)) - 1.0).max() < 2e-7
    assert pinned.exp(np.zeros(1, np.float32))[0] == 1.0


def bits(ids: int, positions: range, *, seed: int = 11, choice: int = 0) -> np.ndarray:
    """[positions, ids] random words."""
    every = np.arange(ids)
    return np.stack([pinned.token_bits(every, pinned.token_key(seed, choice, p)) for p in positions])


@pytest.mark.parametrize("shift", [24, 12, 0])
def test_bits_are_uniform_over_ids_and_over_positions(shift: int) -> None:
    words = (bits(4096, range(256)) >> np.uint32(shift)) & np.uint32(255)
    for table in (words, words.T):  # each position over its ids, each id over its positions
        statistics = np.array([chi_square(np.bincount(row, minlength=256), len(row) / 256) for row in table])
        assert abs(statistics.mean() - 255) < 5 * math.sqrt(2 * 255 / len(table))
        assert statistics.max() < critical(255, 6.0)


def pair_counts(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Joint histogram of the upper four bits."""
    return np.bincount(((a >> np.uint32(28)) * 16 + (b >> np.uint32(28))).ravel(), minlength=256)


@pytest.mark.parametrize("distance", [1, 2, 3, 8, 64, 1024])
def test_neighboring_ids_and_positions_are_independent(distance: int) -> None:
    words = bits(4096, range(200))
    counts = pair_counts(words[:, :-distance], words[:, distance:])
    assert chi_square(counts, counts.sum() / 256) < critical(255)
    if distance < 200:
        counts = pair_counts(words[:-distance], words[distance:])
        assert chi_square(counts, counts.sum() / 256) < critical(255)


@pytest.mark.parametrize(("seed", "choice"), [(12, 0), (11, 1), (11 + 2**32, 0)])
def test_other_seeds_and_choices_are_independent(seed: int, choice: int) -> None:
    counts = pair_counts(bits(4096, range(200)), bits(4096, range(200), seed=seed, choice=choice))
    assert chi_square(counts, counts.sum() / 256) < critical(255)


def test_noise_has_the_gumbel_distribution() -> None:
    noise = np.concatenate([pinned.gumbel(np.arange(50_000), (p, 77 * p)) for p in range(20)])
    uniform = np.exp(-np.exp(-noise))
    counts = np.bincount((uniform * 1000).astype(int), minlength=1000)
    assert chi_square(counts, len(noise) / 1000) < critical(999)
    assert abs(noise.mean() - 0.5772156649) < 5 * math.pi / math.sqrt(6 * len(noise))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    logits = np.linspace(2.0, -2.0, 12, dtype=np.float32)
    params = SamplingParams(temperature=temperature)
    draws = 6_000
    order = np.arange(12)
    counts = np.zeros(12)
    for position in range(draws):
        key = pinned.token_key(5, 0, position)
        counts[reference.draw(logits, order, params.temperature, key)] += 1
    weights = np.exp(logits.astype(np.float64) / temperature)
    assert chi_square(counts, draws * weights / weights.sum()) < critical(11)


def test_removing_other_tokens_does_not_change_a_tokens_noise() -> None:
    """If the winner survives truncation, it wins again; this makes drafts agree with their model."""
    rng = np.random.default_rng(1)
    logits = rng.standard_normal(500).astype(np.float32)
    key = pinned.token_key(1, 0, 0)
    every = np.arange(500)
    winner = reference.draw(logits, every, 1.0, key)
    for _ in range(50):
        rest = np.flatnonzero(rng.random(500) < 0.5)
        rest = rest[logits[rest] < logits.max()]
        kept = np.unique([*rest, winner, logits.argmax()])
        assert reference.draw(logits, kept, 1.0, key) == winner


def test_truncation_by_hand() -> None:
    x = np.log(np.array([0.1, 0.4, 0.2, 0.2, 0.1], np.float32))
    assert chain.truncate(x, SamplingParams()).tolist() == [1, 2, 3, 0, 4]
    assert chain.truncate(x, SamplingParams(top_k=2)).tolist() == [1, 2]  # ties: the lowest id
    assert chain.truncate(x, SamplingParams(top_p=0.5)).tolist() == [1, 2]
    assert chain.truncate(x, SamplingParams(top_p=0.61)).tolist() == [1, 2, 3]
    assert chain.truncate(x, SamplingParams(top_p=1e-9)).tolist() == [1]
    assert chain.truncate(x, SamplingParams(top_p=0.0)).tolist() == [1]
    assert chain.truncate(x, SamplingParams(top_k=2, top_p=0.66)).tolist() == [1]  # 0.4 / 0.6
    assert chain.truncate(x, SamplingParams(min_p=0.45)).tolist() == [1, 2, 3]
    assert chain.truncate(x, SamplingParams(min_p=1.0)).tolist() == [1]


def test_penalties_by_hand() -> None:
    logits = np.array([2.0, -2.0, 2.0, -2.0, 1.0], np.float32)
    params = SamplingParams(
        repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={4: 3}
    )
    out = penalties.adjust(logits, params, prompt_ids=[0, 1], output_ids=[2, 3, 2])
    assert out.tolist() == [1.0, -4.0, 1.0 - 0.5 - 0.5, -4.0 - 0.5 - 0.25, 4.0]


def test_ends_are_suppressed_before_min_tokens_only() -> None:
    logits = np.array([5.0, 4.0, 3.0], np.float32)
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(1,))

    def token(params: SamplingParams, generated: int) -> int:
        return reference.sample(logits, params, output_ids=[2] * generated, eos_ids=[0]).token

    assert [token(params, generated) for generated in range(4)] == [2, 2, 0, 0]
    deaf = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(1,), ignore_eos=True)
    assert token(deaf, 0) == 0


def test_bad_rows_are_typed_errors() -> None:
    good = np.zeros(4, np.float32)
    for bad in (math.nan, math.inf):
        logits = good.copy()
        logits[2] = bad
        with pytest.raises(NumericalError):
            reference.sample(logits, SamplingParams())
    with pytest.raises(NumericalError):
        reference.sample(np.full(4, -np.inf, np.float32), SamplingParams())
    with pytest.raises(InvalidRequest, match="no token"):
        reference.sample(good, SamplingParams(), allowed=np.zeros(1, np.uint32))
    with pytest.raises(InvalidRequest, match="logit_bias"):
        reference.sample(good, SamplingParams(logit_bias={4: 1.0}))
