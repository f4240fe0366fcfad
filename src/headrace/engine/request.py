"""The engine's input and output: one request type, its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from msgspec import Struct

from headrace.engine.scaling.options import Scaling
from headrace.engine.step_share import StepShare, TokenCosts
from headrace.errors import HeadraceError
from headrace.grammar.constraint import Constraint
from headrace.ops.value import Array
from headrace.sampling.params import SamplingParams
from headrace.sampling.reasoning_budget import ReasoningBudget

FinishReason = Literal["stop", "length", "cancelled"]


class EmbedParams(Struct, frozen=True):
    """Encode the prompt instead of generating: the first `dimensions` numbers of the vector, None for all.

    Tokens from index `pair_start` on are the second text of a pair; None: there is one text. The last
    `unseen` tokens see the others, and no token sees them.
    """

    dimensions: int | None = None
    pair_start: int | None = None
    unseen: int = 0


class Targets(Struct, frozen=True):
    """A request's own targets in seconds: to the first token, and per token after it; None: the model's.

    Unless it may be `urgent`, no step is shortened for targets tighter than the model's: they only decide
    what becomes of the request where it is predicted to miss them.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    urgent: bool = True


class EngineRequest(Struct, frozen=True, kw_only=True):
    """One prompt with its parameters; `params.n` choices come back.

    `cache_salt` separates prefix caches (one per API key); `cache` False neither reads nor feeds the prefix
    cache. Requests of different `account`s share the engine fairly. Lower `priority` runs sooner.
    `deadline_s` counts from submission. `is_continuation` says that the output goes on with the prompt's text
    (a completion) and so may begin with a space, rather than being a text of its own (an answer). Special
    tokens are no part of the text, but for those of
    `visible_token_ids`. Every choice matches `constraint`, where there is one, or fails; `thinking` bounds
    its reasoning. `prediction` is the output that the client expects; where it is right, generation is
    faster. `scaling` ranks or votes on the choices; then a Selection comes before RequestFinished. With
    `embed` an encoder makes a vector of the prompt. With `continuations` (token ids, at least one each)
    nothing is generated: ContinuationsScored comes, and the sampling parameters have no effect. `slo` are
    its own targets. `predicts`: nothing is computed, the last event has the steps that would be.
    `adapter` is the digest of a loaded adapter, "" for none; prefix caches of adapters are separate.
    """

    prompt: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    request_id: str = ""
    cache_salt: str = ""
    cache: bool = True
    account: str = ""
    priority: int = 0
    deadline_s: float | None = None
    is_continuation: bool = False
    constraint: Constraint | None = None
    visible_token_ids: frozenset[int] = frozenset()
    thinking: ReasoningBudget | None = None
    prediction: tuple[int, ...] = ()
    scaling: Scaling | None = None
    embed: EmbedParams | None = None
    continuations: tuple[tuple[int, ...], ...] = ()
    slo: Targets | None = None
    predicts: bool = False
    adapter: str = ""


class TokenLogprob(Struct, frozen=True):
    """Natural-log probability of a token under the model's distribution before truncation."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # most likely first
    rank: int = 0  # 1: no token is likelier; 0: not known


class PromptLogprobs(Struct, frozen=True):
    """All tokens of the prompt but its first, where `prompt_logprobs` were asked for; before any Delta."""

    logprobs: tuple[TokenLogprob, ...]


class Usage(Struct, frozen=True):
    """Token counts of one request; `cache_miss_reason` says why `cached_tokens` is not larger. Where the
    request had a `prediction`, so many drafted tokens turned out right and wrong. `tokens_saved` is how many
    more the choices that `scaling` stopped might have generated, up to their limits: a bound."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cache_miss_reason: str | None = None
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    tokens_saved: int = 0


class Delta(Struct, frozen=True):
    """New text of one choice. `text` may be empty while a character is incomplete or a stop
    string is possible."""

    choice: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


class Embedding(Struct, frozen=True):
    """The vectors of a text: one, or with pooling `none` one for each token. `data` is float32,
    little-endian."""

    rows: int
    data: bytes

    @property
    def vectors(self) -> Array:
        """[rows, dimensions], read-only."""
        return np.frombuffer(self.data, "<f4").reshape(self.rows, -1)


class ContinuationsScored(Struct, frozen=True):
    """Of each continuation the sum of the natural-log probabilities of its tokens after the prompt."""

    logprobs: tuple[float, ...]


class ChoiceFinished(Struct, frozen=True):
    """One choice has ended; `stop` is the stop string or stop-token id that ended it, if one did, or what of
    `scaling` did: "max_total_tokens" or "deadline_s" with reason "length", "vote" or "best_by" with
    "cancelled". `score` is what beam search ranks by."""

    choice: int
    reason: FinishReason
    stop: str | int | None = None
    score: float | None = None


class Selection(Struct, frozen=True):
    """What `scaling` made of all choices: their `order`, the one to return first.

    With a vote `answer` is the winner's, None where no choice has one, and `votes` are those counted by then,
    most first. With a ranking `scores` has one for each choice, None where it was stopped. `budget` names the
    budget of all choices together that ended some of them.
    """

    order: tuple[int, ...]
    answer: str | None = None
    votes: tuple[tuple[str, int], ...] = ()
    scores: tuple[float | None, ...] = ()
    budget: str | None = None


class Timing(Struct, frozen=True):
    """Seconds on the monotonic clock: from submission to first scheduling, first token and the end.
    `late_s` was predicted for the first token where that is later than `target_s`, else both are 0."""

    queue_s: float
    first_token_s: float
    total_s: float
    late_s: float = 0.0
    target_s: float = 0.0


class PageMove(Struct, frozen=True):
    """KV pages of the prompt went from one replica to another, which read `tokens` less. `start_s` counts
    from submission; `after_s` of the `seconds` passed after the last page was computed. `problem`: why no
    more came, "" for nothing."""

    reason: str
    start_s: float
    seconds: float
    after_s: float
    tokens: int
    nbytes: int
    source: int
    target: int
    problem: str = ""


class RequestFinished(Struct, frozen=True):
    """Terminal: every choice has ended. `trace` are the steps that the request took part in, `costs` what
    others would have cost, `moves` those of pages between replicas."""

    usage: Usage
    timing: Timing
    seed: int
    trace: tuple[StepShare, ...] = ()
    costs: TokenCosts = TokenCosts()
    moves: tuple[PageMove, ...] = ()


class RequestFailed(Struct, frozen=True):
    """Terminal: the request failed; nothing follows."""

    error: HeadraceError


EngineEvent = (
    PromptLogprobs
    | Delta
    | Embedding
    | ContinuationsScored
    | ChoiceFinished
    | Selection
    | RequestFinished
    | RequestFailed
)
Terminal = RequestFinished | RequestFailed
EventCallback = Callable[[list[EngineEvent]], None]
"""Called on the engine's thread with the events of one step, in order. It must not raise; while it blocks
the engine waits, so it may do so only while a client does not keep up."""


class RequestHandle(Struct):
    """A handle on a submitted request: `cancel()` stops work within one step, `pause()` until it is
    resumed."""

    request_id: str
    _cancel: Callable[[str], None]
    _pause: Callable[[str, bool], None]

    def cancel(self) -> None:
        """Stop the request: its pages are free after the current step; it ends with 'cancelled' and
        RequestFinished."""
        self._cancel(self.request_id)

    def pause(self, paused: bool) -> None:
        """Compute no more of it while its client does not keep up, or continue; without effect on beams."""
        self._pause(self.request_id, paused)
