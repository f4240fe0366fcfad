"""Votes against brute force: stopping early never changes the winner, and stops no later than it could."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.scaling.majority_vote import MajorityVote

ANSWERS = [None, "a", "b", "c"]


def winner_of_all(answers: Sequence[str | None], lengths: Sequence[int]) -> tuple[str | None, int]:
    """The rule itself, over all choices: most votes, lowest index; fewest tokens, lowest index."""
    given_answers = [answer for answer in answers if answer is not None]
    if not given_answers:
        return None, 0
    best = max(given_answers, key=lambda answer: (given_answers.count(answer), -answers.index(answer)))
    voters = [choice for choice, answer in enumerate(answers) if answer == best]
    return best, min(voters, key=lambda choice: (lengths[choice], choice))


@dataclass
class Run:
    """Choices that grow by some tokens a step each, some of them later than others."""

    answers: list[str | None]
    lengths: list[int]
    delays: list[int]

    def vote(self) -> tuple[MajorityVote, dict[int, int]]:
        """Run until nobody is left; the tokens of those that were stopped."""
        ballot, stopped = MajorityVote(len(self.answers)), dict[int, int]()
        running = set(range(len(self.answers)))
        for step in itertools.count():
            tokens = {choice: max(0, step - self.delays[choice]) for choice in running}
            for choice in sorted(running):
                if tokens[choice] >= self.lengths[choice]:
                    ballot.cast(choice, self.answers[choice], self.lengths[choice])
                    running.discard(choice)
            for choice in ballot.prunable({choice: tokens[choice] for choice in running}):
                running.discard(choice)
                stopped[choice] = tokens[choice]
            if not running:
                return ballot, stopped
        raise AssertionError


@st.composite
def runs(draw: st.DrawFn) -> Run:
    count = draw(st.integers(1, 9))
    column = st.lists(st.integers(0, 6), min_size=count, max_size=count)
    answers = draw(st.lists(st.sampled_from(ANSWERS), min_size=count, max_size=count))
    return Run(answers, [1 + length for length in draw(column)], draw(column))


@settings(max_examples=500)
@given(runs())
def test_stopping_never_changes_the_winner(run: Run) -> None:
    ballot, stopped = run.vote()
    assert (ballot.leader, ballot.winner) == winner_of_all(run.answers, run.lengths)
    assert ballot.winner not in stopped
    assert sum(votes for _, votes in ballot.votes) + len(stopped) <= len(run.answers)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=5), st.data())
def test_it_is_decided_as_soon_as_no_rest_of_the_vote_can_change_the_answer(
    answers: list[str | None], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(answers))))
    ballot, cast = MajorityVote(len(answers)), dict[int, str | None]()
    for choice in order:
        ballot.cast(choice, answers[choice], 1)
        cast[choice] = answers[choice]
        rest = [other for other in range(len(answers)) if other not in cast]
        ends: set[str | None] = set()
        for tail in itertools.product([*ANSWERS, "d"], repeat=len(rest)):
            whole = cast | dict(zip(rest, tail, strict=True))
            ends.add(winner_of_all([whole[i] for i in range(len(answers))], [1] * len(answers))[0])
        assert ballot.decided == (len(ends) == 1 and ends != {None})


def test_who_might_still_be_the_shortest_goes_on() -> None:
    ballot = MajorityVote(5)
    for choice in (1, 3, 4):
        ballot.cast(choice, "yes", 10)
    assert ballot.decided and ballot.winner == 1 and ballot.votes == [("yes", 3)]
    assert ballot.prunable({0: 9, 2: 9}) == [2]  # choice 0 could end with ten, too, and comes first
    assert ballot.prunable({0: 10, 2: 8}) == [0]
    ballot.cast(2, "yes", 9)
    assert ballot.winner == 2


def test_nobody_has_an_answer() -> None:
    ballot = MajorityVote(2)
    ballot.cast(1, None, 3)
    assert not ballot.decided and ballot.prunable({0: 50}) == []
    ballot.cast(0, None, 60)
    assert (ballot.leader, ballot.winner, ballot.votes) == (None, 0, [])
