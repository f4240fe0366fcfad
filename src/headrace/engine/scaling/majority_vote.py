"""Majority vote among choices: their answers, when it is decided, which choices can still change it."""

from __future__ import annotations

from collections.abc import Mapping


class MajorityVote:
    """The vote of `count` choices, each cast as it ends.

    The answer of the whole vote is the one that most choices give; of equals, the one given by the choice of
    the lowest index. The winner is the choice that gave this answer in the fewest tokens; of equals, the one
    of the lowest index. Where no choice has an answer, choice 0 wins.

    That is a function of all choices' answers and lengths. Choices that are stopped early change neither:

    - `decided` holds when no rest of the vote can change the answer. For a leader with c votes, first given
      by choice i, and a rival with r votes (an answer that nobody gave yet has 0), the worst rest is the one
      in which every choice still running answers as the rival does: any other gives the rival fewer votes or
      the leader more, and a rival no lower index. So the leader is safe when it beats each rival with the
      running ones added: c > r + running, or equal and i below every index of the rival's and the running.
      And this is also necessary, as that rest is possible.
    - A running choice with g tokens so far ends with g + 1 or more. Where the answer is decided and
      (g + 1, its index) comes after (tokens, index) of the best of the leader's choices, it cannot be the
      winner, whatever it answers. `prunable` names such choices, and no others.

    So the winner, and every byte of it, is that of the vote in which all choices run to their ends, whatever
    the order in which they end. Only how many votes were counted by then, and which choices were stopped
    where, depends on that order; the engine tells of choices that end in one step together.
    """

    def __init__(self, count: int) -> None:
        self._running = set(range(count))
        self._votes: dict[str, list[int]] = {}
        self._tokens: dict[int, int] = {}
        self.decided = False
        """Whether the answer is certain."""

    @property
    def votes(self) -> list[tuple[str, int]]:
        """The answers so far with their votes; the leader first."""
        return [(answer, len(self._votes[answer])) for answer in sorted(self._votes, key=self._standing)]

    @property
    def leader(self) -> str | None:
        """The answer that most have given so far."""
        return min(self._votes, key=self._standing, default=None)

    @property
    def winner(self) -> int:
        """The choice with the leading answer; choice 0 where there is no answer."""
        voters = [] if self.leader is None else self._votes[self.leader]
        return min(voters, key=lambda choice: (self._tokens[choice], choice), default=0)

    def cast(self, choice: int, answer: str | None, tokens: int) -> None:
        """A choice has ended after `tokens` tokens with an answer, or without one."""
        self._running.discard(choice)
        self._tokens[choice] = tokens
        if answer is not None:
            self._votes.setdefault(answer, []).append(choice)
        self.decided = self.decided or self._certain()

    def prunable(self, generated: Mapping[int, int]) -> list[int]:
        """The choices that can change nothing any more, of those under way with so many tokens each."""
        if not self.decided:
            return []
        best = (self._tokens[self.winner], self.winner)
        return [choice for choice in sorted(generated) if (generated[choice] + 1, choice) > best]

    def _certain(self) -> bool:
        leader = self.leader
        if leader is None:
            return False
        votes, first = len(self._votes[leader]), min(self._votes[leader])
        rivals = [voters for answer, voters in self._votes.items() if answer != leader]
        if self._running:
            rivals.append([])
        return all(
            (-votes, first) < (-len(together), min(together))
            for rival in rivals
            if (together := [*rival, *self._running])
        )

    def _standing(self, answer: str) -> tuple[int, int]:
        return -len(self._votes[answer]), min(self._votes[answer])
