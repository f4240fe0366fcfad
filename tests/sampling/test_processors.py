"""Each processor against the formula of its paper or of llama.cpp, and draws against their distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_reference import critical

from headrace import _native
from headrace.sampling import deterministic_math as pinned
from headrace.sampling import penalties, reference
from headrace.sampling import processors as chain
from headrace.sampling.banned_strings import BannedStrings, BannedTokens, SequenceBreakers, TokenBytes
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import Sampler, SamplerState

P = np.array([0.05, 0.4, 0.25, 0.15, 0.1, 0.05])
X = np.log(P).astype(np.float32)
POOL = _native.Pool(2)


def kept(coin: float = 1.0, **params: object) -> list[int]:
    return chain.truncate(X, SamplingParams(**params), coin).tolist()  # type: ignore[arg-type]


def test_top_n_sigma_by_hand() -> None:
    deviation = float(np.std(X.astype(np.float64)))
    assert kept(top_n_sigma=(float(X[1] - X[3]) + 0.01) / deviation) == [1, 2, 3]
    assert kept(top_n_sigma=(float(X[1] - X[3]) - 0.01) / deviation) == [1, 2]
    assert kept(top_n_sigma=1e-9) == [1] and len(kept(top_n_sigma=-1.0)) == 6


def test_typical_p_by_hand() -> None:
    entropy = -(P * np.log(P)).sum()  # 1.53 nats; 0.25 is nearest, then 0.15, 0.4, 0.1
    assert np.argsort(np.abs(-np.log(P) - entropy), kind="stable")[:4].tolist() == [2, 3, 1, 4]
    assert kept(typical_p=0.2) == [2]
    assert kept(typical_p=0.3) == [2, 3]
    assert kept(typical_p=0.7) == [1, 2, 3]
    assert kept(typical_p=0.3, top_p=0.6) == [2]  # of what is left


def test_xtc_by_hand() -> None:
    assert kept(0.49, xtc_probability=0.5, xtc_threshold=0.2) == [2, 3, 4, 0, 5]  # the least likely stays
    assert kept(0.5, xtc_probability=0.5, xtc_threshold=0.2) == [1, 2, 3, 4, 0, 5]
    assert kept(0.0, xtc_probability=1.0, xtc_threshold=0.5) == [1, 2, 3, 4, 0, 5]  # none has a half
    assert kept(0.0, xtc_probability=1.0, xtc_threshold=0.0) == [5]
    assert kept(0.0, xtc_probability=1.0, xtc_threshold=0.1, top_k=1) == [1]  # one token left


def test_dynamic_temperature_by_hand() -> None:
    order = np.arange(6)[np.argsort(-X, kind="stable")]
    share = -(P * np.log(P)).sum() / math.log(6)
    params = SamplingParams(temperature=1.0, dynatemp_range=0.4, dynatemp_exponent=2.0)
    assert chain.temperature_of(X, order, params) == pytest.approx(0.6 + 0.8 * share**2, rel=1e-6)
    assert chain.temperature_of(X, order[:1], params) == 1.0
    flat = np.zeros(4, np.float32)
    assert chain.temperature_of(flat, np.arange(4), params) == pytest.approx(1.4)
    one = np.array([0.0, -90.0], np.float32)
    assert chain.temperature_of(one, np.arange(2), params) == pytest.approx(0.6)


def test_mirostat_2_by_hand() -> None:
    params = SamplingParams(mirostat=2, mirostat_tau=2.0, mirostat_eta=0.5)
    assert chain.initial_mu(params) == 4.0
    assert chain.unsurprising(X, params, 2.1).tolist() == [1, 2]  # -log2 0.25 is 2, -log2 0.15 is 2.7
    assert chain.unsurprising(X, params, 0.1).tolist() == [1]
    mu = chain.next_mu(X, np.array([1, 2]), 2, params, 3.0)
    assert mu == pytest.approx(3.0 - 0.5 * (-math.log2(0.25 / 0.65) - 2.0), rel=1e-6)


def test_mirostat_1_estimates_the_exponent() -> None:
    ranks = np.arange(1, 5001)
    for exponent, mu in ((1.2, 3.0), (2.0, 5.0)):
        x = (-exponent * np.log(ranks)).astype(np.float32)
        params = SamplingParams(mirostat=1)
        epsilon = exponent - 1
        k = (epsilon * 2**mu / (1 - len(x) ** -epsilon)) ** (1 / exponent)
        assert abs(len(chain.unsurprising(x, params, mu)) - k) <= 1
    assert len(chain.unsurprising(np.zeros(7, np.float32), params, 1.0)) == 7
    assert chain.unsurprising(np.zeros(1, np.float32), params, 1.0).tolist() == [0]


def test_mirostat_holds_its_surprise() -> None:
    rng = np.random.default_rng(2)
    logits = (-1.1 * np.log(np.arange(1, 3001)) + 0.1 * rng.standard_normal(3000)).astype(np.float32)
    log_p = logits - np.log(np.exp(logits).sum())
    for version in (1, 2):
        for tau in (2.0, 4.0):
            params = SamplingParams(mirostat=version, mirostat_tau=tau)
            state, sampler, surprises = SamplerState(params, 3, 0, [], []), Sampler(3000, POOL), []
            for _ in range(600):
                token = int(sampler.sample(logits[None].copy(), [state]).tokens[0])
                state.append(token)
                surprises.append(-float(log_p[token]) / math.log(2))
            # The observed surprise is that among the kept tokens, a little less than among all.
            assert tau - 0.4 < np.mean(surprises[100:]) < tau + 1.6


def test_penalties_consider_only_repeat_last_n_tokens() -> None:
    logits = np.ones(5, np.float32)
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.25, repeat_last_n=2)
    out = penalties.adjust(logits, params, prompt_ids=[0, 1], output_ids=[2])
    assert out.tolist() == [1.0, 0.5, 0.25, 1.0, 1.0]
    none = SamplingParams(repetition_penalty=2.0, repeat_last_n=0)
    assert penalties.adjust(logits, none, [0, 1], [2]).tolist() == [1.0] * 5


def test_dry_by_hand() -> None:
    params = SamplingParams(dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=2)
    assert penalties.dry_penalties([1, 2, 3, 9, 1, 2], params) == {3: 0.5}
    assert penalties.dry_penalties([4, 1, 2, 3, 9, 4, 1, 2], params) == {3: 1.0}
    assert penalties.dry_penalties([1, 2, 3, 9, 2], params) == {}  # one token is too short
    assert penalties.dry_penalties([1, penalties.BREAK, 3, 9, 1, penalties.BREAK], params) == {}
    assert penalties.dry_penalties([7] * 5, params) == {7: 2.0}  # it has followed itself four times
    endless = penalties.dry_penalties([7] * 2000, SamplingParams(dry_multiplier=1.0))
    assert endless == {7: penalties.MAX_DRY_PENALTY}


def test_coins_are_fair_and_independent_of_the_noise() -> None:
    coins = np.array([pinned.coin(3, 1, position) for position in range(4000)])
    counts = np.bincount((coins * 20).astype(int), minlength=20)
    assert ((counts - 200) ** 2 / 200).sum() < critical(19)
    noise = np.array([pinned.token_bits(np.array([5]), pinned.token_key(3, 1, p))[0] for p in range(4000)])
    assert abs(np.corrcoef(coins, noise.astype(float))[0, 1]) < 0.07


CHAINS: dict[str, dict[str, object]] = {
    "top_n_sigma": {"top_n_sigma": 1.0},
    "typical_p": {"typical_p": 0.8},
    "xtc": {"xtc_probability": 0.4, "xtc_threshold": 0.05},
    "dynatemp": {"dynatemp_range": 0.8, "dynatemp_exponent": 0.7},
    "dry": {"dry_multiplier": 1.5, "dry_allowed_length": 1},
    "repeat_last_n": {"repetition_penalty": 1.5, "frequency_penalty": 0.7, "repeat_last_n": 3},
    "mirostat 1": {"mirostat": 1, "mirostat_eta": 0.0, "mirostat_tau": 1.2},
    "mirostat 2": {"mirostat": 2, "mirostat_eta": 0.0, "mirostat_tau": 1.5},
    "everything": {
        "top_n_sigma": 3.0,
        "top_k": 30,
        "typical_p": 0.95,
        "top_p": 0.9,
        "min_p": 0.02,
        "temperature": 1.3,
    },
}


def expected(logits: np.ndarray, params: SamplingParams, history: list[int]) -> np.ndarray:
    """Probabilities from the definition's sets and a plain float64 softmax, over both outcomes of the
    coin.
    """
    x = penalties.adjust(logits, params, (), history, history)
    total = np.zeros(len(x))
    for coin, weight in ((0.0, params.xtc_probability), (1.0, 1.0 - params.xtc_probability)):
        if params.mirostat:
            left, temperature = chain.unsurprising(x, params, chain.initial_mu(params)), params.temperature
        else:
            left = chain.truncate(x, params, coin)
            temperature = chain.temperature_of(x, left, params)
        weights = np.exp((x[left].astype(np.float64) - x[left].max()) / temperature)
        total[left] += weight * weights / weights.sum()
    return total


@pytest.mark.parametrize("name", CHAINS)
def test_native_draws_follow_the_definitions_probabilities(name: str) -> None:
    params = SamplingParams(**CHAINS[name])  # type: ignore[arg-type]
    logits = (np.random.default_rng(8).standard_normal(60) * 1.5).astype(np.float32)
    best = int(logits.argmax())
    history = [best, 3, best, 4, best] if name in ("dry", "repeat_last_n") else []
    probabilities = expected(logits, params, history)
    assert (probabilities == 0).any() or name in ("xtc", "dynatemp", "dry", "repeat_last_n")
    sampler, counts, draws = Sampler(60, POOL), np.zeros(60), 20_000
    for start in range(0, draws, 500):
        states = [SamplerState(params, start + i, 0, [], []) for i in range(500)]
        for state in states:
            for token in history:
                state.append(token)
        counts += np.bincount(sampler.sample(np.tile(logits, (500, 1)), states).tokens, minlength=60)
    assert counts[probabilities == 0].sum() == 0
    wanted = draws * probabilities
    often = wanted >= 5
    rest = ~often & (wanted > 0)
    statistic = ((counts[often] - wanted[often]) ** 2 / wanted[often]).sum()
    if wanted[rest].sum() > 0:
        statistic += (counts[rest].sum() - wanted[rest].sum()) ** 2 / wanted[rest].sum()
    assert statistic < critical(max(int(often.sum()) - 1 + int(rest.any()), 1))


def test_greedy_takes_the_likeliest_that_is_left() -> None:
    params = SamplingParams(temperature=0.0, typical_p=0.2)
    assert reference.sample(X, params).token == 2
    state = SamplerState(params, 0, 0, [], [])
    assert Sampler(6, POOL).sample(X[None].copy(), [state]).tokens.tolist() == [2]


TOKENS = TokenBytes([b"a", b"b", b"ab", b"", b"ba", "é".encode()[:1], "é".encode()[1:], b"xaby", b"\xff"])


def words(mask: np.ndarray) -> list[int]:
    return [token for token in range(9) if not mask[0] >> token & 1]


def test_banned_strings_by_hand() -> None:
    banned = BannedStrings(BannedTokens(TOKENS, ["ab", "é"]))
    assert words(banned.mask()) == [2, 7]
    for token, forbidden in ((0, [1, 2, 4, 7]), (3, [1, 2, 4, 7]), (5, [2, 6, 7]), (4, [1, 2, 4, 7])):
        banned.accept(token)
        assert words(banned.mask()) == forbidden


def test_breakers_by_hand() -> None:
    breakers = SequenceBreakers(TOKENS.tokens, ["bb", "y"])
    assert [breakers.push(token) for token in (0, 1, 1, 1, 0, 7, 3, 4)] == [
        *(False, False, True, True),
        *(False, True, False, False),
    ]


def test_tops_and_scores_agree_with_the_definition() -> None:
    logits = np.random.default_rng(3).standard_normal((2, 500)).astype(np.float32)
    sampler, exact = Sampler(500, POOL), reference.log_softmax(logits[1])
    order = np.argsort(-logits[1], kind="stable")
    assert sampler.top(logits, 1, 7) == [(int(i), float(exact[i])) for i in order[:7]]
    assert len(sampler.top(logits, 0, 10_000)) == 500
    [score] = sampler.score(logits, [1], [int(order[4])], 2)
    assert (score.rank, score.logprob) == (5, float(exact[order[4]]))
    assert [token for token, _ in score.top] == order[:2].tolist()
