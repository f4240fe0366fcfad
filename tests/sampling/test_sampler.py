"""The native sampler equals the definition, for any batch, order and number of threads."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _native
from headrace.errors import HeadraceError, InvalidRequest, NumericalError
from headrace.sampling import penalties, reference
from headrace.sampling.banned_strings import SequenceBreakers
from headrace.sampling.params import SamplingParams, with_defaults
from headrace.sampling.sampler import Sampler, SamplerState

POOLS = {threads: _native.Pool(threads) for threads in (1, 2, 5)}
VOCABULARIES = (1, 2, 31, 64, 255, 256, 257, 700, 5000, 9000)


def make_logits(kind: str, rng: np.random.Generator, vocabulary: int) -> np.ndarray:
    x = rng.standard_normal(vocabulary) * rng.choice([0.0, 0.1, 3.0, 30.0])
    if kind == "ties":
        x = np.round(x)
    elif kind == "holes":
        x[rng.random(vocabulary) < 0.7] = -np.inf
        x[rng.integers(vocabulary)] = 1.0
    elif kind == "rising":
        x = np.sort(x)
    elif kind == "extreme":
        x *= 10.0 ** rng.integers(-40, 37)
    elif kind == "peak":
        x[rng.integers(vocabulary)] += 20.0
    return x.astype(np.float32)


def params_strategy(vocabulary: int) -> st.SearchStrategy[SamplingParams]:
    ids = st.integers(0, vocabulary - 1)
    return st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1e-310, 1e-6, 0.3, 0.7, 1.0, 1.5, 100.0]),
        dynatemp_range=st.sampled_from([0.0, 0.0, 0.0, 0.5, 100.0]),
        dynatemp_exponent=st.sampled_from([1.0, 1e-9, 0.5, 3.0, 100.0]),
        top_n_sigma=st.sampled_from([0.0, 0.0, 0.0, -1.0, 1e-9, 0.5, 1.0, 3.0, 1000.0]),
        typical_p=st.sampled_from([1.0, 1.0, 1.0, 1e-9, 0.2, 0.9, 0.999999]),
        xtc_probability=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
        xtc_threshold=st.sampled_from([0.1, 0.0, 0.01, 0.5]),
        repeat_last_n=st.sampled_from([-1, -1, 0, 1, 4, 20]),
        dry_multiplier=st.sampled_from([0.0, 0.0, 0.8, 100.0]),
        dry_base=st.sampled_from([1.75, 1.0, 100.0]),
        dry_allowed_length=st.sampled_from([1, 2, 5]),
        dry_penalty_last_n=st.sampled_from([-1, 0, 1, 10]),
        top_k=st.sampled_from([0, 0, 1, 2, 3, 20, 50, 300, 4000, 2**31 - 1]),
        top_p=st.sampled_from([1.0, 1.0, 0.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999999]),
        min_p=st.sampled_from([0.0, 0.0, 1e-300, 1e-4, 0.05, 0.5, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.1, 0.5, 100.0, 1e-45]),
        presence_penalty=st.sampled_from([0.0, 0.0, 0.3, -100.0]),
        frequency_penalty=st.sampled_from([0.0, 0.0, 0.7, -0.1, 100.0]),
        logit_bias=st.dictionaries(ids, st.floats(-100, 100), max_size=5),
        min_tokens=st.integers(0, 3),
        stop_token_ids=st.lists(ids, max_size=3).map(tuple),
        ignore_eos=st.booleans(),
        logprobs=st.sampled_from([None, 0, 1, 5, 20]),
    )


def mirostat_strategy(params: SamplingParams) -> st.SearchStrategy[SamplingParams]:
    """The same with mirostat instead of truncation, half of the time."""
    given = st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([1e-310, 1e-3, 0.7, 1.0, 100.0]),
            "mirostat": st.sampled_from([1, 2]),
            "mirostat_tau": st.sampled_from([5.0, 0.0, 0.5, 2.0, 100.0]),
            "mirostat_eta": st.sampled_from([0.1, 0.0, 1.0]),
        }
    )
    return st.one_of(st.just(params), given.map(lambda values: with_defaults(params, values)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, list[tuple[str, SamplingParams]]]:
    vocabulary = draw(st.sampled_from(VOCABULARIES))
    kinds = st.sampled_from(["plain", "ties", "holes", "rising", "extreme", "peak"])
    rows = draw(
        st.lists(
            st.tuples(kinds, params_strategy(vocabulary).flatmap(mirostat_strategy)), min_size=1, max_size=7
        )
    )
    return vocabulary, draw(st.integers(0, 2**32)), rows


def broken(ids: list[int], breakers: list[str]) -> list[int]:
    """The input of DRY if each id is spelled as its number, computed from the whole text."""
    out, text = [], ""
    for token in ids:
        before, text = len(text), text + str(token)
        ends = {m + len(b) for b in breakers for m in range(len(text)) if text.startswith(b, m)}
        out.append(penalties.BREAK if any(end > before for end in ends) else token)
    return out


@given(case=cases(), threads=st.sampled_from(sorted(POOLS)))
@settings(max_examples=int(os.environ.get("TEST_SAMPLER_EXAMPLES", "120")))
def test_native_equals_the_definition(
    case: tuple[int, int, list[tuple[str, SamplingParams]]], threads: int
) -> None:
    vocabulary, seed, rows = case
    rng = np.random.default_rng(seed)
    logits = np.stack([make_logits(kind, rng, vocabulary) for kind, _ in rows])
    states, expected, masks = [], [], []
    repetitive = max(1, vocabulary // int(rng.integers(1, 200)))
    for (_, params), x in zip(rows, logits, strict=True):
        prompt = rng.integers(0, repetitive, rng.integers(0, 30)).tolist()
        output = rng.integers(0, repetitive, rng.integers(0, 6)).tolist()
        mask = rng.integers(0, 2**32, -(-vocabulary // 32), dtype=np.uint32) if rng.random() < 0.3 else None
        row_seed, choice = int(rng.integers(0, 2**63)), int(rng.integers(0, 9))
        eos = [int(rng.integers(vocabulary))]
        words = [rng.integers(0, repetitive, rng.integers(1, 4)).tolist() for _ in range(rng.integers(0, 3))]
        breakers = SequenceBreakers([str(token).encode() for token in range(vocabulary)], ["1", "99"])
        state = SamplerState(params, row_seed, choice, prompt, eos, words, breakers.marked(prompt), breakers)
        for token in output:
            state.append(token)
        states.append(state)
        masks.append(mask)
        try:
            drawn = reference.sample(
                x,
                params,
                seed=row_seed,
                choice=choice,
                prompt_ids=prompt,
                output_ids=output,
                eos_ids=eos,
                allowed=mask,
                bad_words=words,
                history=broken(prompt + output, ["1", "99"]),
            )
        except HeadraceError as error:
            drawn = error
        expected.append(drawn)
    sampled = Sampler(vocabulary, POOLS[threads]).sample(logits, states, masks)
    for r, drawn in enumerate(expected):
        if isinstance(drawn, HeadraceError):
            assert type(sampled.errors[r]) is type(drawn)
            assert sampled.tokens[r] == -1
            continue
        assert sampled.errors[r] is None
        assert sampled.tokens[r] == drawn.token
        assert sampled.tops[r] == drawn.top  # bit for bit, as everything is
        np.testing.assert_array_equal(sampled.logprobs[r], np.float32(drawn.logprob))
        states[r].append(drawn.token)
        assert states[r].mu == drawn.mu


MIX = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    SamplingParams(temperature=1.3, top_p=0.95, logprobs=3),
    SamplingParams(temperature=1.0, min_p=0.02, repetition_penalty=1.2),
)


def test_a_row_does_not_depend_on_batch_order_or_threads() -> None:
    vocabulary, rng = 20_000, np.random.default_rng(3)
    logits = (rng.standard_normal((40, vocabulary)) * 3).astype(np.float32)
    params = [MIX[i % len(MIX)] for i in range(40)]

    def run(rows: list[int], threads: int) -> list[tuple[int, float, object]]:
        states = [SamplerState(params[i], 9, i, range(50), []) for i in rows]
        out = Sampler(vocabulary, POOLS[threads]).sample(logits[rows], states)
        return [(int(t), repr(p), top) for t, p, top in zip(out.tokens, out.logprobs, out.tops, strict=True)]

    expected = dict(enumerate(run(list(range(40)), 1)))
    for threads in POOLS:
        for size in (1, 3, 4, 17):
            rows = rng.permutation(40)[:size].tolist()
            assert run(rows, threads) == [expected[i] for i in rows]


@pytest.mark.parametrize("params", MIX[1:])
def test_flat_and_large_vocabularies_equal_the_definition(params: SamplingParams) -> None:
    vocabulary = 151_936
    rng = np.random.default_rng(4)
    logits = (rng.standard_normal((3, vocabulary)) * np.array([[0.5], [3.0], [8.0]])).astype(np.float32)
    expected = [reference.sample(x, params, seed=2, choice=i).token for i, x in enumerate(logits)]
    states = [SamplerState(params, 2, i, [], []) for i in range(3)]
    assert Sampler(vocabulary, POOLS[2]).sample(logits, states).tokens.tolist() == expected


def test_draws_follow_the_softmax_across_positions_and_rows() -> None:
    vocabulary, rows, steps = 300, 64, 150
    logits = np.random.default_rng(6).standard_normal(vocabulary).astype(np.float32)
    states = [SamplerState(SamplingParams(), seed, 0, [], []) for seed in range(rows)]
    sampler, counts = Sampler(vocabulary, POOLS[2]), np.zeros(vocabulary)
    tokens = np.zeros((steps, rows), np.int64)
    for step in range(steps):
        tokens[step] = sampler.sample(np.tile(logits, (rows, 1)), states).tokens
        for state, token in zip(states, tokens[step].tolist(), strict=True):
            state.append(token)
    counts = np.bincount(tokens.ravel(), minlength=vocabulary)
    weights = np.exp(logits.astype(np.float64))
    expected = tokens.size * weights / weights.sum()
    degrees = vocabulary - 1
    assert ((counts - expected) ** 2 / expected).sum() < degrees + 5 * math.sqrt(2 * degrees)
    share = (weights**2).sum() / weights.sum() ** 2  # of equal independent pairs
    for a, b in ((tokens[:-1], tokens[1:]), (tokens[:, :-1], tokens[:, 1:])):
        assert abs((a == b).mean() - share) < 5 * math.sqrt(share / a.size)


def test_bad_rows_do_not_affect_the_others() -> None:
    vocabulary = 1000
    logits = np.random.default_rng(7).standard_normal((6, vocabulary)).astype(np.float32)
    states = [SamplerState(MIX[3], 1, i, [], []) for i in range(6)]
    expected = Sampler(vocabulary, POOLS[2]).sample(logits.copy(), states)
    broken = logits.copy()
    broken[1] = np.nan
    broken[3, 999] = np.inf
    broken[4] = -np.inf
    sampled = Sampler(vocabulary, POOLS[2]).sample(broken, states)
    for r in range(6):
        if r in (1, 3, 4):
            error = sampled.errors[r]
            assert isinstance(error, NumericalError)
            assert error.code == "numerical_error" and "1,000" in error.message
            assert sampled.tokens[r] == -1 and math.isnan(sampled.logprobs[r]) and sampled.tops[r] == ()
        else:
            assert sampled.errors[r] is None
            assert sampled.tokens[r] == expected.tokens[r]
            assert sampled.tops[r] == expected.tops[r]


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = np.array([[1.0, 2.0, 3.0, 3.0]], np.float32)
    params = SamplingParams(temperature=0.0, logit_bias={0: 50.0}, top_k=1, logprobs=3)
    sampled = Sampler(4, POOLS[1]).sample(logits.copy(), [SamplerState(params, 0, 0, [], [])])
    exact = logits[0] - np.log(np.exp(logits[0]).sum())
    assert sampled.tokens.tolist() == [0]
    assert sampled.logprobs[0] == pytest.approx(exact[0], abs=1e-6)
    assert [token for token, _ in sampled.tops[0]] == [2, 3, 1]
    assert [value for _, value in sampled.tops[0]] == pytest.approx(exact[[2, 3, 1]], abs=1e-6)


def test_position_counts_appended_tokens_and_keys_the_draw() -> None:
    state = SamplerState(SamplingParams(), 5, 2, [1, 2], [])
    sampler, logits = Sampler(5000, POOLS[1]), np.zeros((1, 5000), np.float32)
    tokens = []
    for position in range(8):
        assert state.position == position
        token = int(sampler.sample(logits, [state]).tokens[0])
        assert token == int(sampler.sample(logits, [state]).tokens[0])  # drawing again changes nothing
        state.append(token)
        tokens.append(token)
    assert len(set(tokens)) == 8


def test_wrong_shapes_and_types_are_refused() -> None:
    sampler, state = Sampler(64, POOLS[1]), SamplerState(SamplingParams(), 0, 0, [], [])
    with pytest.raises(ValueError, match=r"\[1, 63\], expected \[1, 64\]"):
        sampler.sample(np.zeros((1, 63), np.float32), [state])
    with pytest.raises(ValueError, match=r"\[2, 64\], expected \[1, 64\]"):
        sampler.sample(np.zeros((2, 64), np.float32), [state])
    with pytest.raises(ValueError, match="needs 2"):
        sampler.sample(np.zeros((1, 64), np.float32), [state], [np.zeros(3, np.uint32)])
    with pytest.raises(TypeError):
        sampler.sample(np.zeros((1, 64), np.float64), [state])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="1 to 524,288"):
        Sampler(2**20, POOLS[1])


def test_no_token_left_is_a_typed_error() -> None:
    state = SamplerState(SamplingParams(min_tokens=1, stop_token_ids=(3,)), 0, 0, [], [])
    only_three = np.array([8], np.uint32)
    sampled = Sampler(32, POOLS[1]).sample(np.zeros((1, 32), np.float32), [state], [only_three])
    assert isinstance(sampled.errors[0], InvalidRequest) and "no token is left" in sampled.errors[0].message
    state = SamplerState(SamplingParams(logit_bias={32: 1.0}), 0, 0, [], [])
    sampled = Sampler(32, POOLS[1]).sample(np.zeros((1, 32), np.float32), [state])
    assert isinstance(sampled.errors[0], InvalidRequest) and sampled.errors[0].param == "logit_bias"


def test_an_empty_step_is_empty() -> None:
    sampled = Sampler(10, POOLS[2]).sample(np.zeros((0, 10), np.float32), [])
    assert len(sampled.tokens) == 0 and sampled.errors == ()
