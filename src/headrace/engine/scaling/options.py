"""What is made of the choices of one request together: a vote, a ranking, one budget for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, cast, get_args

from msgspec import Struct

from headrace.chat.answer_span import AnswerSpan
from headrace.errors import InvalidRequest
from headrace.tokenization.linear_pattern import LinearPattern

Extraction = Literal["text", "last_number", "boxed", "regex", "json_pointer", "function"]
Score = Literal["mean_logprob", "sum_logprob", "scorer"]


class Candidate(Struct, frozen=True):
    """A choice that has ended, as a scorer sees it: its whole text, reasoning and marks included."""

    text: str
    tokens: tuple[int, ...]
    reason: str  # why it ended: stop or length


class Scorer(Protocol):
    """Scores for candidates, higher is better; called once, with all of them, on the engine's thread."""

    def __call__(self, candidates: Sequence[Candidate], /) -> Sequence[float]:
        """One score for each candidate. What it raises ends the request."""
        ...


class Vote(Struct, frozen=True):
    """Self-consistency (Wang et al. 2022, https://arxiv.org/abs/2203.11171): the answer of most choices.

    `extract` says what of a choice is its answer: its `text`; the `last_number` in it; what stands in the
    last `\\boxed{}`; the group of the last match of `pattern`, a `regex` in RE2's syntax; or what `pattern`,
    a JSON pointer (RFC 6901), finds in it. `function` takes the text and gives the answer, or None; it is
    called on the engine's thread and cannot cross to another process. All look at the text after the
    reasoning.
    """

    extract: Extraction
    pattern: str | None = None
    function: Callable[[str], str | None] | None = None

    def __post_init__(self) -> None:
        if self.extract not in get_args(Extraction):
            known = ", ".join(get_args(Extraction)[:-1])
            raise InvalidRequest(
                f"vote: there is no {self.extract!r:.60}: choose one of {known}", param="vote"
            )
        if (self.pattern is not None) != (self.extract in ("regex", "json_pointer")):
            raise InvalidRequest("vote: regex and json_pointer need a pattern, the others none", param="vote")
        if (self.function is not None) != (self.extract == "function"):
            raise InvalidRequest("vote: a function goes with extract 'function' alone", param="vote")
        if self.extract == "regex" and self.pattern is not None:
            LinearPattern(self.pattern, param="vote")
        elif self.pattern and not self.pattern.startswith("/"):
            raise InvalidRequest(
                f"vote: the JSON pointer {self.pattern!r:.60} does not begin with /: write it as in RFC 6901",
                param="vote",
            )


class Ranking(Struct, frozen=True):
    """The best choices first: by log-probability per token, by that of the whole, or by one's own scorer.

    Only the `keep` best are certain to be whole: with `sum_logprob`, which can only fall while a choice
    grows, those that are worse already are stopped.
    """

    by: Score = "mean_logprob"
    keep: int = 1
    scorer: Scorer | None = None

    def __post_init__(self) -> None:
        if self.by not in get_args(Score) or (self.scorer is not None) != (self.by == "scorer"):
            known = ", ".join(get_args(Score)[:-1])
            raise InvalidRequest(
                f"best_by is {self.by!r:.60}: choose one of {known}, or in Python a function", param="best_by"
            )

    @property
    def needs_logprobs(self) -> bool:
        """Whether it needs the log-probability of every token."""
        return self.by != "scorer"


class Scaling(Struct, frozen=True, kw_only=True):
    """One of `vote` and `rank`, or neither; and at most `max_total_tokens` tokens in all choices together.

    With it the request's deadline ends what is under way and the best so far comes back, where without it the
    request fails. `place` finds a choice's answer in its text, None: all of it.
    """

    vote: Vote | None = None
    rank: Ranking | None = None
    max_total_tokens: int | None = None
    place: AnswerSpan | None = None

    @property
    def local(self) -> bool:
        """Whether a function of the caller's is part of it, which no other process can call."""
        functions = (self.vote and self.vote.function, self.rank and self.rank.scorer)
        return any(function is not None for function in functions)

    def __post_init__(self) -> None:
        if self.vote is not None and self.rank is not None:
            raise InvalidRequest(
                "vote and best_by both say which choice is given out: leave one of them out",
                param="vote",
            )
        most = self.max_total_tokens
        if most is not None and (type(most) is not int or most < 1):
            raise InvalidRequest(
                f"max_total_tokens is {most!r:.40}, it must be a whole number, at least 1",
                param="max_total_tokens",
            )


def scaling_of(
    vote: object = None,
    best_by: object = None,
    max_total_tokens: int | None = None,
    *,
    keep: int = 1,
    place: AnswerSpan | None = None,
) -> Scaling | None:
    """What callers write, as a Scaling; None where nothing is asked for.

    `vote` is the name of an extraction, a mapping with the fields of `Vote`, or a function; `best_by` the
    name of a score, a function from one text to its score, or a `Ranking`.
    """
    if vote is None and best_by is None and max_total_tokens is None:
        return None
    return Scaling(
        vote=_vote(vote), rank=_ranking(best_by, keep), max_total_tokens=max_total_tokens, place=place
    )


def _vote(given: object) -> Vote | None:
    if given is None or isinstance(given, Vote):
        return given
    if callable(given):
        return Vote("function", function=cast("Callable[[str], str | None]", given))
    fields = cast("Mapping[str, Any]", given if isinstance(given, Mapping) else {"extract": given})
    if set(fields) - {"extract", "pattern"} or not all(isinstance(value, str) for value in fields.values()):
        raise InvalidRequest("vote takes extract and pattern, both texts", param="vote")
    return Vote(cast("Extraction", fields.get("extract", "")), fields.get("pattern"))


def _ranking(given: object, keep: int) -> Ranking | None:
    if given is None or isinstance(given, Ranking):
        return given
    if callable(given):
        score = cast("Callable[[str], float]", given)
        return Ranking("scorer", keep, lambda candidates: [score(each.text) for each in candidates])
    return Ranking(cast("Score", given), keep)
