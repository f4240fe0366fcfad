"""Bad words, banned strings, DRY and mirostat in the engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.engine.request import EngineRequest
from headrace.grammar.constraint import choice_constraint
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from tiny import Outcome, Running

PROMPT = "Once upon a time there was a"


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = load_model("novelette", EngineOptions(max_num_seqs=16, max_batch_tokens=64, threads=2))
    yield loaded
    loaded.close()


def run(model: LoadedModel, prompt: str = PROMPT, **sampling: object) -> Outcome:
    params = SamplingParams(**({"temperature": 0, "max_tokens": 60, "ignore_eos": True} | sampling))  # type: ignore[arg-type]
    ids = tuple(model.tokenizer.encode_prompt(prompt))
    return Running(model.engine, EngineRequest(prompt=ids, params=params, is_continuation=True)).finish()


def test_a_banned_string_never_stands_in_the_text(model: LoadedModel) -> None:
    text = run(model).text[0]
    pieces = [text[i : i + n] for n in (1, 2, 5, 9) for i in range(3, len(text) - n, 11)]
    for piece in pieces:
        outcome = run(model, banned_strings=(piece, "zzz"))
        assert piece not in outcome.text[0]
        assert len(outcome.tokens[0]) == 60
    for seed in range(5):
        sampled = run(model, temperature=1.5, seed=seed, banned_strings=("e", "th", " the old "), n=2)
        assert not any(banned in text for text in sampled.text.values() for banned in ("e", "th"))


def test_banned_strings_and_a_grammar_hold_together(model: LoadedModel) -> None:
    params = SamplingParams(seed=1, banned_strings=("y", "m"), n=3, max_tokens=20)
    request = EngineRequest(
        prompt=(5, 6), params=params, constraint=choice_constraint(["yes", "no", "maybe"])
    )
    assert set(Running(model.engine, request).finish().text.values()) == {"no"}


def test_bad_words_are_never_generated_as_they_are_encoded(model: LoadedModel) -> None:
    base = run(model)
    word = max(base.text[0].split(), key=len)
    changed = run(model, bad_words=(word,))
    assert word in base.text[0].split() and word not in changed.text[0].split()
    start = base.text[0].index(word)
    assert changed.text[0][:start] == base.text[0][:start]  # nothing else is touched


def test_dry_ends_a_loop_but_not_one_of_breakers(model: LoadedModel) -> None:
    [token] = model.tokenizer.encode("a", add_special=False)[-1:]
    looping: dict[str, object] = {"logit_bias": {token: 60.0}, "max_tokens": 12}
    dry: dict[str, object] = {"dry_multiplier": 100.0, "dry_allowed_length": 1}
    assert run(model, **looping).tokens[0] == [token] * 12
    assert run(model, **looping, **dry).tokens[0].count(token) < 8
    text = model.tokenizer.token_bytes(token).decode()
    assert run(model, **looping, **dry, dry_sequence_breakers=(text,)).tokens[0] == [token] * 12


@pytest.mark.parametrize(
    "sampling",
    [
        {"mirostat": 2, "mirostat_tau": 3.0},
        {"mirostat": 1, "mirostat_tau": 4.0},
        {"xtc_probability": 0.5, "typical_p": 0.9, "dry_multiplier": 0.8, "repeat_last_n": 20},
        {"top_n_sigma": 1.0, "dynatemp_range": 0.5, "banned_strings": ("ing", " a")},
    ],
)
def test_neither_the_batch_nor_preemption_changes_a_token(
    model: LoadedModel, sampling: dict[str, object]
) -> None:
    common: dict[str, object] = {"temperature": 0.9, "max_tokens": 130} | sampling
    alone = [run(model, f"{i} {PROMPT}", seed=i, **common).tokens[0] for i in range(8)]
    small = load_model(
        "novelette",
        EngineOptions(max_num_seqs=8, max_batch_tokens=16, threads=1, kv_cache_memory=_pages(model, 12)),
    )
    try:
        params = [SamplingParams(**(common | {"seed": i, "ignore_eos": True})) for i in range(8)]  # type: ignore[arg-type]
        prompts = [tuple(model.tokenizer.encode_prompt(f"{i} {PROMPT}")) for i in range(8)]
        running = [
            Running(small.engine, EngineRequest(prompt=prompt, params=one, is_continuation=True))
            for prompt, one in zip(prompts, params, strict=True)
        ]
        assert [one.finish().tokens[0] for one in running] == alone
        assert small.engine.status().preemptions > 0
    finally:
        small.close()


def _pages(model: LoadedModel, count: int) -> int:
    return model.plan.kv_bytes // model.plan.page_count * count
