"""Grammars and allowed tokens in the engine: forced tokens, ends, errors, masks of many rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from headrace.engine.engine import Engine
from headrace.engine.request import EngineRequest, RequestFailed, RequestFinished
from headrace.engine.sampling.constraints import MASKS_S
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint, GrammarError, choice_constraint, schema_constraint
from headrace.grammar.matcher import Matcher
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from tiny import Outcome, Running

SCHEMA = {
    "type": "object",
    "properties": {
        "name_of_the_hero": {"type": "string", "maxLength": 12},
        "years_of_age": {"type": "integer", "minimum": 0, "maximum": 99},
        "mood": {"enum": ["happy", "sad"]},
    },
    "required": ["name_of_the_hero", "years_of_age", "mood"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = load_model(
        "novelette", EngineOptions(speculative="off", max_num_seqs=16, max_batch_tokens=64, threads=2)
    )
    yield loaded
    loaded.close()


def request(model: LoadedModel, constraint: Constraint | None, **sampling: object) -> EngineRequest:
    params = SamplingParams(**({"seed": 7, "max_tokens": 120} | sampling))  # type: ignore[arg-type]
    prompt = model.tokenizer.encode_prompt("Once upon a time there was a")
    return EngineRequest(prompt=tuple(prompt), params=params, constraint=constraint)


def run(model: LoadedModel, constraint: Constraint | None, **sampling: object) -> Outcome:
    return Running(model.engine, request(model, constraint, **sampling)).finish()


def failure(outcome: Outcome) -> Exception:
    [event] = outcome.terminal
    assert isinstance(event, RequestFailed)
    return event.error


def test_forced_tokens_cost_no_step_and_change_nothing(model: LoadedModel) -> None:
    constraint = schema_constraint(SCHEMA)
    for seed in range(8):
        before = model.engine.status().steps
        forced = run(model, constraint, seed=seed)
        middle = model.engine.status().steps
        stepwise = run(
            model, constraint, seed=seed, logprobs=0
        )  # asks for logits, so each token has its step
        after = model.engine.status().steps
        assert forced.tokens == stepwise.tokens and forced.text == stepwise.text
        assert forced.ends == stepwise.ends
        tokens = len(forced.tokens[0])
        assert after - middle >= tokens > middle - before + 8
        if forced.ends[0].reason == "stop":
            assert list(json.loads(forced.text[0])) == list(SCHEMA["properties"])
        assert forced.done.usage.completion_tokens == tokens


def test_the_end_of_a_grammar_ends_the_choice(model: LoadedModel) -> None:
    outcome = run(model, choice_constraint(["yes", "no", "maybe"]), n=5)
    assert set(outcome.text.values()) <= {"yes", "no", "maybe"}
    assert {end.reason for end in outcome.ends.values()} == {"stop"}
    assert outcome.tokens[0][-1] not in model.tokenizer.eos_ids


def test_max_tokens_cuts_forced_tokens(model: LoadedModel) -> None:
    for limit in range(1, 12):
        outcome = run(model, schema_constraint(SCHEMA), max_tokens=limit)
        assert len(outcome.tokens[0]) == limit and outcome.ends[0].reason == "length"


def test_stop_strings_end_among_forced_tokens(model: LoadedModel) -> None:
    outcome = run(model, schema_constraint(SCHEMA), stop=("_of",))
    assert outcome.text[0].endswith("name") and outcome.ends[0].stop == "_of"
    kept = run(model, schema_constraint(SCHEMA), stop=("_of",), include_stop_str_in_output=True)
    assert kept.text[0] == outcome.text[0] + "_of"


def test_min_tokens_that_the_grammar_cannot_reach_is_an_error(model: LoadedModel) -> None:
    error = failure(run(model, choice_constraint(["yes"]), min_tokens=30))
    assert isinstance(error, InvalidRequest) and error.param == "min_tokens"
    assert run(model, Constraint("regex", "a+"), min_tokens=5, max_tokens=9).text[0].strip("a") == ""


def test_nothing_but_the_grammar_ends_an_output_that_ignores_eos(model: LoadedModel) -> None:
    outcome = run(model, Constraint("regex", "(ab)*"), ignore_eos=True, max_tokens=30)
    assert len(outcome.tokens[0]) == 30 and outcome.ends[0].reason == "length"
    assert run(model, choice_constraint(["yes"]), ignore_eos=True).text[0] == "yes"


def test_a_constraint_after_a_marker(model: LoadedModel) -> None:
    outcome = run(model, Constraint("choice", '["red", "green"]', after=","), max_tokens=200)
    before, comma, after = outcome.text[0].partition(",")
    assert before and comma and after.strip() in ("red", "green")


def test_allowed_token_ids(model: LoadedModel) -> None:
    outcome = run(model, None, allowed_token_ids=(40, 41, 99), max_tokens=20)
    assert set(outcome.tokens[0]) <= {40, 41, 99}
    ids = model.tokenizer.encode("yes no", add_special=False)
    both = run(model, choice_constraint(["yes", "maybe"]), allowed_token_ids=tuple(ids))
    assert both.text[0] == "yes"
    with pytest.raises(InvalidRequest, match="allowed_token_ids: token 999999 is not in the vocabulary"):
        run(model, None, allowed_token_ids=(999_999,))


def test_contradictions_fail_the_request_alone(model: LoadedModel) -> None:
    constraint = choice_constraint(["yes"])
    bad = Running(model.engine, request(model, constraint, allowed_token_ids=(40,)))
    good = Running(model.engine, request(model, constraint))
    assert good.finish().text[0] == "yes"
    assert isinstance(failure(bad.finish()), InvalidRequest)


def test_a_grammar_that_gives_up_fails_its_request_alone(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.grammar.compile.MAX_LEXER_STATES", 60)
    bad = Running(model.engine, request(model, Constraint("regex", "(a|b)*a(a|b){9}[0-9]"), max_tokens=400))
    good = Running(model.engine, request(model, None, max_tokens=50))
    assert len(good.finish().tokens[0]) == 50
    assert isinstance(failure(bad.finish()), GrammarError)
    assert run(model, None, max_tokens=3).done


def test_a_constraint_that_cannot_be_compiled_is_refused_at_the_door(model: LoadedModel) -> None:
    with pytest.raises(GrammarError, match="no value matches the schema"):
        run(model, schema_constraint({"not": {}}))
    assert model.engine.status().waiting == 0


def test_a_constrained_request_can_be_cancelled(model: LoadedModel) -> None:
    endless = request(model, Constraint("regex", "a+"), max_tokens=400, ignore_eos=True)
    running = Running(model.engine, endless)
    running.next()
    running.ticket.cancel()
    assert running.finish().ends[0].reason == "cancelled"


def test_an_unconstrained_request_builds_no_grammar(tmp_path_factory: pytest.TempPathFactory) -> None:
    loaded = load_model("novelette", EngineOptions(max_num_seqs=4, max_batch_tokens=16))
    engine: Engine = loaded.engine
    try:
        [event] = run(loaded, None, max_tokens=3).terminal
        assert isinstance(event, RequestFinished)
        assert engine._constraints._grammars._tokens is None
    finally:
        loaded.close()


def test_a_step_waits_for_one_slow_mask_not_for_all(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight choices whose masks take longer than a step waits get their tokens one after the other, the same
    ones; who decodes beside them gets a token in each of those steps."""
    constraint = Constraint("regex", "[ab ]{12}")
    expected = run(model, constraint, n=8)
    original = Matcher.mask

    def slow(matcher: Matcher) -> object:
        time.sleep(3 * MASKS_S)
        return original(matcher)

    monkeypatch.setattr(Matcher, "mask", slow)
    neighbor = Running(model.engine, request(model, None, max_tokens=400))
    before = model.engine.status().steps
    outcome = run(model, constraint, n=8)
    steps = model.engine.status().steps - before
    neighbor.ticket.cancel()
    assert outcome.tokens == expected.tokens and outcome.text == expected.text
    masks = sum(map(len, outcome.tokens.values()))
    assert steps >= masks / 2, "a step waited for several slow masks"
    assert sum(map(len, neighbor.finish().tokens.values())) >= masks / 2


def test_what_the_parser_cannot_follow_is_not_tried_again(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling again takes up to a second, on the engine's thread, and would fail the same way."""
    monkeypatch.setattr("headrace.grammar.compile.MAX_STEP_ITEMS", 20)
    constraint = Constraint("lark", 'start: "x" s\ns: s s | /[a-z]/ | /[a-c] /')
    started = model.engine._constraints._grammars.compile(constraint)  # type: ignore[attr-defined]
    if started.exception() is not None:
        pytest.skip("refused at once")
    compiled: list[Constraint] = []
    monkeypatch.setattr("headrace.grammar.matcher.new_state", lambda *args: compiled.append(args[0]))
    assert "parser error" in str(failure(run(model, constraint))).lower()
    assert not compiled
