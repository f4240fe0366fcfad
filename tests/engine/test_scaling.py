"""Votes, rankings and common budgets in the engine: the winner of all, and nothing leaked."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from headrace.engine.request import ChoiceFinished, EngineRequest, RequestFailed, Selection
from headrace.engine.scaling.options import Candidate, Ranking, Scaling, Vote
from headrace.errors import DeadlineExceeded, InvalidRequest
from headrace.grammar.constraint import Constraint
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from tiny import Outcome, Running

N = 8


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = load_model("novelette", EngineOptions(max_num_seqs=8, max_batch_tokens=64, threads=2))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def small() -> Iterator[LoadedModel]:
    """Of eight choices three run at a time, and begin at different steps."""
    loaded = load_model("novelette", EngineOptions(max_num_seqs=3, max_batch_tokens=16, threads=1))
    yield loaded
    loaded.close()


@pytest.fixture(autouse=True)
def _all_pages_come_back(model: LoadedModel, small: LoadedModel) -> Iterator[None]:
    yield
    for loaded in (model, small):
        status = loaded.engine.status()
        assert (status.running, status.waiting) == (0, 0)
        assert status.available_pages == status.page_count


def request(
    model: LoadedModel, scaling: Scaling | None, *, deadline_s: float | None = None, **sampling: object
) -> EngineRequest:
    fixed: dict[str, object] = {"seed": 7, "max_tokens": 60, "n": N, "stop": (".", "!")}
    params = SamplingParams(**(fixed | sampling))  # type: ignore[arg-type]
    prompt = tuple(model.tokenizer.encode_prompt("Once upon a time there was a"))
    return EngineRequest(
        prompt=prompt, params=params, is_continuation=True, scaling=scaling, deadline_s=deadline_s
    )


def run(model: LoadedModel, scaling: Scaling | None, **sampling: object) -> Outcome:
    return Running(model.engine, request(model, scaling, **sampling)).finish()


def verdict(outcome: Outcome) -> Selection:
    [found] = outcome.verdicts
    return found


def answer_of(text: str) -> str | None:
    """An answer that some choices have in common."""
    words = text.split()
    return None if len(words) < 3 else str(len(words[-1]) // 3)


VOTE = Scaling(vote=Vote("function", function=answer_of))


def expected(plain: Outcome) -> tuple[str | None, int]:
    """The winning answer and choice of a vote in which all run to their ends."""
    answers = [answer_of(plain.text[choice]) for choice in range(N)]
    votes = [answer for answer in answers if answer is not None]
    best = max(votes, key=lambda answer: (votes.count(answer), -answers.index(answer)))
    voters = [choice for choice in range(N) if answers[choice] == best]
    return best, min(voters, key=lambda choice: (len(plain.tokens[choice]), choice))


def check_against(plain: Outcome, outcome: Outcome) -> None:
    """Choices are what they are alone, or the beginning of that where they were stopped."""
    for choice, end in outcome.ends.items():
        tokens = outcome.tokens.get(choice, [])
        assert tokens == plain.tokens[choice][: len(tokens)]
        if end.stop in ("vote", "best_by", "max_total_tokens", "deadline_s"):
            assert plain.text[choice].startswith(outcome.text.get(choice, ""))
        else:
            assert end == plain.ends[choice] and outcome.text[choice] == plain.text[choice]
            assert len(tokens) == len(plain.tokens[choice])
    assert outcome.done.usage.completion_tokens == sum(map(len, outcome.tokens.values()))


@pytest.mark.parametrize("seed", range(12))
def test_the_winner_is_that_of_the_whole_vote_however_it_runs(
    model: LoadedModel, small: LoadedModel, seed: int
) -> None:
    plain = run(model, None, seed=seed)
    answer, winner = expected(plain)
    beside = Running(model.engine, request(model, None, seed=99, n=3))
    for outcome in (run(model, VOTE, seed=seed), run(small, VOTE, seed=seed)):
        assert (verdict(outcome).answer, verdict(outcome).order[0]) == (answer, winner)
        assert outcome.text[winner] == plain.text[winner]
        check_against(plain, outcome)
        stopped = [choice for choice, end in outcome.ends.items() if end.reason == "cancelled"]
        assert all(outcome.ends[choice].stop == "vote" for choice in stopped)
        left = sum(60 - len(outcome.tokens.get(choice, [])) for choice in stopped)
        assert outcome.done.usage.tokens_saved == left
        really = sum(len(plain.tokens[c]) - len(outcome.tokens.get(c, [])) for c in stopped)
        assert really <= left and (really > 0) == bool(stopped)
    beside.finish()


def test_a_clear_vote_saves_tokens(model: LoadedModel) -> None:
    outcome = run(model, Scaling(vote=Vote("function", function=lambda text: "same")))
    assert verdict(outcome).votes[0][1] < N and outcome.done.usage.tokens_saved > 0
    everything = run(model, None).done.usage.completion_tokens
    assert outcome.done.usage.completion_tokens < everything


def test_a_vote_without_answers_runs_to_the_end(model: LoadedModel) -> None:
    outcome = run(model, Scaling(vote=Vote("boxed")))
    assert verdict(outcome) == Selection(tuple(range(N)))
    assert outcome.bits == run(model, None).bits


@pytest.mark.parametrize("most", [8, 9, 57, 100, 171])
def test_the_common_budget_is_exact(model: LoadedModel, small: LoadedModel, most: int) -> None:
    plain = run(model, None)
    assert plain.done.usage.completion_tokens > 171
    for loaded in (model, small):
        outcome = run(loaded, Scaling(max_total_tokens=most))
        assert outcome.done.usage.completion_tokens == most
        assert verdict(outcome) == Selection(tuple(range(N)), budget="max_total_tokens")
        cut = [choice for choice, end in outcome.ends.items() if end.stop == "max_total_tokens"]
        assert cut and all(outcome.ends[choice].reason == "length" for choice in cut)
        check_against(plain, outcome)


def test_a_budget_that_is_not_reached_changes_nothing(model: LoadedModel) -> None:
    plain = run(model, None)
    used = plain.done.usage.completion_tokens
    outcome = run(model, Scaling(max_total_tokens=used + 1))
    assert outcome.bits == plain.bits and verdict(outcome).budget is None
    outcome = run(model, Scaling(max_total_tokens=used))
    assert outcome.tokens == plain.tokens


def test_forced_tokens_count(model: LoadedModel) -> None:
    forced = Constraint("regex", "Once upon a time there was a house at the end of the lane[a-z ]{90}")
    sampling = {"n": 2, "stop": ()}
    for most in (5, 23):
        asked = replace(request(model, Scaling(max_total_tokens=most), **sampling), constraint=forced)
        outcome = Running(model.engine, asked).finish()
        assert outcome.done.usage.completion_tokens == most


def test_the_deadline_brings_the_best_so_far(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    offset_s = 0.0
    monkeypatch.setattr(model.engine._admission, "_clock", lambda: time.monotonic() + offset_s)
    plain = run(model, None)
    for scaling in (VOTE, Scaling(rank=Ranking()), Scaling(max_total_tokens=10_000)):
        offset_s = 0.0
        running = Running(model.engine, request(model, scaling, deadline_s=1000))
        running.next()
        offset_s = 2000.0
        outcome = running.finish()
        assert verdict(outcome).budget == "deadline_s"
        assert any(end == ChoiceFinished(c, "length", "deadline_s") for c, end in outcome.ends.items())
        check_against(plain, outcome)
    offset_s = 0.0
    running = Running(model.engine, request(model, None, deadline_s=1000))
    running.next()
    offset_s = 2000.0
    [failed] = running.finish().terminal
    assert isinstance(failed, RequestFailed) and isinstance(failed.error, DeadlineExceeded)


def test_nothing_so_far_is_no_answer(model: LoadedModel) -> None:
    asked = replace(request(model, VOTE), deadline_s=1e-9)
    [failed] = Running(model.engine, asked).finish().terminal
    assert isinstance(failed, RequestFailed) and isinstance(failed.error, DeadlineExceeded)


def test_cut_choices_vote_only_where_nobody_else_does(model: LoadedModel) -> None:
    first = Scaling(vote=Vote("function", function=lambda text: text.split()[0]), max_total_tokens=16)
    assert verdict(run(model, first)).answer is not None
    plain = run(model, None)
    most = N * (min(map(len, plain.tokens.values())) + 3)
    both = Scaling(vote=first.vote, max_total_tokens=most)
    outcome = run(model, both)
    ended = [choice for choice, end in outcome.ends.items() if end.reason == "stop"]
    assert ended and verdict(outcome).order[0] in ended
    assert sum(votes for _, votes in verdict(outcome).votes) == len(ended)
    assert verdict(outcome).budget == "max_total_tokens"


def test_rankings(model: LoadedModel, small: LoadedModel) -> None:
    plain = run(model, None, logprobs=0)
    sums = [sum(token.logprob for token in plain.logprobs[choice]) for choice in range(N)]
    means = [total / len(plain.tokens[choice]) for choice, total in enumerate(sums)]
    for loaded in (model, small):
        outcome = run(loaded, Scaling(rank=Ranking("mean_logprob")))
        assert verdict(outcome).scores == pytest.approx(means)
        assert list(verdict(outcome).order) == sorted(range(N), key=lambda choice: -means[choice])
        assert outcome.tokens == plain.tokens
        for keep in (1, 3):
            outcome = run(loaded, Scaling(rank=Ranking("sum_logprob", keep)))
            best = sorted(range(N), key=lambda choice: -sums[choice])[:keep]
            assert list(verdict(outcome).order[:keep]) == best
            assert [verdict(outcome).scores[choice] for choice in best] == pytest.approx(
                [sums[c] for c in best]
            )
            check_against(plain, outcome)
            assert outcome.done.usage.tokens_saved > 0


def test_a_scorer_sees_every_choice_once(model: LoadedModel) -> None:
    seen: list[Candidate] = []

    def longest(candidates: Sequence[Candidate]) -> list[int]:
        seen.extend(candidates)
        return [len(candidate.text) for candidate in candidates]

    outcome = run(model, Scaling(rank=Ranking("scorer", scorer=longest)))
    assert [candidate.text for candidate in seen] == [outcome.text[choice] for choice in range(N)]
    assert [list(candidate.tokens) for candidate in seen] == [outcome.tokens[choice] for choice in range(N)]
    assert verdict(outcome).order[0] == max(range(N), key=lambda choice: len(outcome.text[choice]))


@pytest.mark.parametrize(
    ("scaling", "cause"),
    [
        (Scaling(vote=Vote("function", function=lambda text: text[10_000])), "IndexError"),
        (Scaling(rank=Ranking("scorer", scorer=lambda candidates: [1.0])), "the scorer failed: ValueError"),
        (Scaling(rank=Ranking("scorer", scorer=lambda candidates: [None] * N)), "TypeError"),  # type: ignore[list-item]
    ],
)
def test_what_fails_ends_the_request_and_no_other(model: LoadedModel, scaling: Scaling, cause: str) -> None:
    beside = Running(model.engine, request(model, None, n=1))
    [failed] = run(model, scaling, n=N).terminal
    assert isinstance(failed, RequestFailed) and isinstance(failed.error, InvalidRequest)
    assert cause in failed.error.message
    assert beside.finish().bits == run(model, None, n=1).bits


def test_cancels_leak_nothing(model: LoadedModel, small: LoadedModel) -> None:
    rng = random.Random(3)
    scalings = [VOTE, Scaling(rank=Ranking("sum_logprob")), Scaling(max_total_tokens=90)]
    for trial in range(30):
        engine = (model, small)[trial % 2].engine
        running = [Running(engine, request(model, scaling, seed=trial)) for scaling in scalings]
        for one in running:
            for _ in range(rng.randrange(12)):
                if not one.outcome.terminal:
                    one.next()
            one.ticket.cancel()
        for one in running:
            one.finish()
        assert len(running[0].outcome.ends) == N


def test_what_contradicts_itself_is_refused_at_the_door(model: LoadedModel) -> None:
    def refused(match: str, scaling: Scaling, **sampling: object) -> None:
        with pytest.raises(InvalidRequest, match=match):
            model.engine.submit(request(model, scaling, **sampling), lambda events: None)

    refused(r"max_total_tokens \(7\) is smaller than n \(8\)", Scaling(max_total_tokens=7))
    refused(
        r"max_total_tokens \(79\) is smaller than min_tokens times n \(80\)",
        Scaling(max_total_tokens=79),
        min_tokens=10,
    )
    refused("cannot be combined with beam search", VOTE, use_beam_search=True, temperature=0, stop=())
