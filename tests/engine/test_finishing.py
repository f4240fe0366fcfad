"""Outputs with a grammar that end within their tokens: whole, the same bytes however they are computed."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.engine.engine import Engine
from headrace.engine.request import EngineRequest
from headrace.errors import InvalidRequest
from headrace.grammar import finishing
from headrace.grammar.constraint import Constraint, schema_constraint
from headrace.grammar.sql import sql_constraint
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from tiny import Outcome, Running

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 3},
        "tags": {"type": "array", "items": {"type": "string"}},
        "parts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"size": {"type": "number"}, "kind": {"enum": ["a", "b"]}},
                "required": ["size", "kind"],
            },
        },
    },
    "required": ["title", "tags", "parts"],
}
TABLES = {"players": ["name", "team", "home city"], "teams": ["name", "city", "Founded"]}


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = load_model("mini", EngineOptions(max_num_seqs=16, max_batch_tokens=64, threads=2))
    yield loaded
    loaded.close()


def request(model: LoadedModel, constraint: Constraint, seed: int, most: int, **more: Any) -> EngineRequest:
    params = SamplingParams(seed=seed, max_tokens=most, temperature=1.2, **more)
    prompt = model.tokenizer.encode_prompt("All of the names, all of the teams, and then")
    return EngineRequest(prompt=tuple(prompt), params=params, constraint=replace(constraint, finishes=True))


def read(constraint: Constraint, text: str) -> None:
    if constraint.kind == "json_schema":
        assert json.loads(text).keys() == SCHEMA["properties"].keys()
        return
    with closing(sqlite3.connect(":memory:")) as made:
        for table, columns in TABLES.items():
            made.execute(f"CREATE TABLE {table} ({', '.join(json.dumps(column) for column in columns)})")
        made.execute("EXPLAIN " + text)


@pytest.mark.parametrize("constraint", [schema_constraint(SCHEMA), sql_constraint(TABLES)])
def test_every_output_is_whole(model: LoadedModel, constraint: Constraint) -> None:
    asked = [request(model, constraint, seed, 45 + seed // 2) for seed in range(24)]
    cut = [replace(one, constraint=constraint) for one in asked]
    outcomes = [running.finish() for running in [Running(model.engine, one) for one in [*asked, *cut]]]
    finished, plain = outcomes[: len(asked)], outcomes[len(asked) :]
    for one, outcome in zip(asked, finished, strict=True):
        assert outcome.ends[0].reason == "stop", outcome.text
        assert len(outcome.tokens[0]) <= (one.params.max_tokens or 0)
        read(constraint, outcome.text[0])
    sent = [outcome.ends[0].stop == "finish_within_max_tokens" for outcome in finished]
    assert sum(outcome.ends[0].reason == "length" for outcome in plain) > 2
    # What was not sent to its end is what it would have been, and what is sent begins like it.
    for was_sent, one, other in zip(sent, finished, plain, strict=True):
        assert was_sent or one.text == other.text
        if other.ends[0].reason == "length":
            assert was_sent and one.text[0][:5] == other.text[0][:5]


@pytest.mark.parametrize("constraint", [schema_constraint(SCHEMA), sql_constraint(TABLES)])
def test_same_bytes_alone_together_and_step_by_step(model: LoadedModel, constraint: Constraint) -> None:
    asked = [request(model, constraint, seed, 44) for seed in range(8)]
    alone = [Running(model.engine, one).finish() for one in asked]
    together = [running.finish() for running in [Running(model.engine, one) for one in asked * 2]]
    stepwise = [
        Running(model.engine, request(model, constraint, at, 44, logprobs=0)).finish() for at in range(8)
    ]
    assert any(outcome.ends[0].stop == "finish_within_max_tokens" for outcome in alone)
    for at, outcome in enumerate(alone):
        for other in (together[at], together[at + 8], stepwise[at]):
            assert other.tokens == outcome.tokens and other.ends == outcome.ends


def test_same_bytes_where_steps_do_not_wait_and_where_they_must(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [request(model, schema_constraint(SCHEMA), seed, 60) for seed in range(4)]
    plain = [Running(model.engine, one).finish().tokens for one in asked]
    monkeypatch.setattr(finishing, "SLICE_S", 0.0)  # each step looks at one place
    assert [Running(model.engine, one).finish().tokens for one in asked] == plain
    assert isinstance(model.engine, Engine)
    constraints = model.engine._constraints  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(constraints, "wait_s", math.inf)  # as with a model whose state goes forward only
    before = model.engine.steps
    assert [Running(model.engine, one).finish().tokens for one in asked] == plain
    assert model.engine.steps - before <= sum(len(one[0]) for one in plain) + len(plain)


def test_too_few_tokens_cut_as_before(model: LoadedModel) -> None:
    outcome: Outcome = Running(model.engine, request(model, schema_constraint(SCHEMA), 1, 8)).finish()
    assert outcome.ends[0].reason == "length" and len(outcome.tokens[0]) == 8


@pytest.mark.parametrize("more", [{"ignore_eos": True}, {"min_tokens": 5}, {"bad_words": ("a",)}])
def test_what_could_forbid_the_end_is_refused(model: LoadedModel, more: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidRequest, match="finish_within_max_tokens cannot be combined with " + next(iter(more))
    ):
        Running(model.engine, request(model, schema_constraint(SCHEMA), 1, 60, **more))
