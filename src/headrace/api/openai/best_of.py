"""What is made of several choices together: a vote, the best of them, one budget; fields of bodies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from headrace.api.openai.generation_body import GenerationBody
from headrace.api.openai.schema import ScalingNote
from headrace.engine.request import Selection
from headrace.errors import InvalidRequest
from headrace.inference.requests import ScalingSettings

MAX_BEST_OF = 20

VOTE = (
    "Self-consistency: of `n` choices the one is given out whose answer most of them have; choices that "
    "cannot change that any more are stopped. Cannot be streamed. `extract` says what the answer is: all "
    "the `text`, the `last_number`, what stands in the last `boxed{}`, the group in the last match of "
    "the `regex` in `pattern` (RE2's syntax), or what the `json_pointer` in `pattern` finds; always "
    "after the reasoning."
)
BEST_OF = (
    "So many choices are computed and the `n` best given out, best first; 0 is as if it were not given. "
    "Cannot be streamed."
)
BEST_BY = "What `best_of` ranks by: the log-probability per token (the default), or that of the whole."
MAX_TOTAL = (
    "The most tokens that all choices of a prompt have together. When it is reached, choices under way end "
    "with `finish_reason` length and `stop_reason` max_total_tokens. Where it, vote or best_of is given, "
    "`deadline_s` does the same, and the best so far comes back."
)


class VoteOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`vote` of a request."""

    extract: Literal["text", "last_number", "boxed", "regex", "json_pointer"]
    pattern: Annotated[str, Meta(max_length=1000)] | None = None


class ScalingBody(GenerationBody):
    """A body that may ask for something to be made of several choices."""

    vote: Annotated[VoteOptions | None, Meta(description=VOTE)] = None
    best_of: Annotated[int, Meta(ge=0, le=MAX_BEST_OF, description=BEST_OF)] | None = None
    best_by: Annotated[Literal["mean_logprob", "sum_logprob"], Meta(description=BEST_BY)] | None = None
    max_total_tokens: Annotated[int, Meta(ge=1, description=MAX_TOTAL)] | None = None

    @property
    def keep(self) -> int:
        """Choices to give out of each prompt."""
        return 1 if self.vote is not None else self.n or 1

    @property
    def computed(self) -> dict[str, Any]:
        """As a sampling parameter, how many choices are computed where these are more than are given out."""
        return {"n": self.best_of} if self.best_of else {}

    def scaling(self) -> ScalingSettings | None:
        """What is made of the choices; raises InvalidRequest for what contradicts itself or cannot stream."""
        n, best_of = self.n or 1, self.best_of or 0
        if best_of and best_of < n:
            raise InvalidRequest(f"best_of ({best_of}) is smaller than n ({n})", param="best_of")
        if self.best_by is not None and best_of <= n:
            raise InvalidRequest(
                f"best_by needs best_of (now {best_of}) larger than n ({n}): there is nothing to choose from",
                param="best_by",
            )
        if self.vote is not None and best_of:
            raise InvalidRequest(
                f"vote is taken among n ({n}) choices, best_of ({best_of}) ranks them: leave one out",
                param="vote",
            )
        if self.stream and (self.vote is not None or best_of > n):
            name = "best_of" if self.vote is None else "vote"
            said = f"best_of ({best_of}) larger than n ({n})" if self.vote is None else "vote"
            raise InvalidRequest(f"{said} cannot be streamed: leave one out", param=name)
        ranks = best_of > n and not self.use_beam_search  # beams come best first
        if self.vote is None and not ranks and self.max_total_tokens is None:
            return None
        return ScalingSettings(
            vote=None if self.vote is None else _given(self.vote),
            best_by=(self.best_by or "mean_logprob") if ranks else None,
            max_total_tokens=self.max_total_tokens,
            keep=n,
        )


def _given(vote: VoteOptions) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(vote).items() if value is not None}


def scaling_note(
    settings: ScalingSettings | None, selection: Selection | None, choice: int
) -> ScalingNote | UnsetType:
    """What a reply says of the choice of that number within its prompt; unset where there is nothing."""
    if settings is None or selection is None:
        return UNSET
    note = ScalingNote(budget=UNSET if selection.budget is None else selection.budget)
    if settings.vote is not None:
        note = structs.replace(note, answer=selection.answer, votes=dict(selection.votes))
    if settings.best_by is not None:
        score = selection.scores[choice]
        note = structs.replace(note, score=UNSET if score is None else score)
    return UNSET if note == ScalingNote() else note
