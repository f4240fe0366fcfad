"""One choice of one request as the scheduler sees it: tokens, pages, state."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

from headrace.kv.prefix_tree import MissReason


class State(Enum):
    """In the queue, running with pages, paused until its client reads on, or ended."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"


class Sequence(Struct, eq=False, kw_only=True):
    """A prompt and what was generated from it.

    The engine appends to `tokens` and sets `draft`, what may follow them, nothing else; the scheduler owns
    the fields after `arrival_s`. A step computes from `tokens[computed:]` and, where it gets to the end, from
    `draft`. `computed` tokens have their keys and values in `pages`.
    All sequences of one `request_id` have the same prompt, salt and cache setting.
    """

    id: int  # unique; the later sequence has the larger one
    request_id: int | str  # unique among the requests in the engine
    choice: int = 0
    tokens: list[int]
    draft: list[int] = field(default_factory=list[int])
    prompt_length: int
    max_length: int  # tokens: prompt and all that may be generated
    cache_salt: str = ""
    cache: bool = True
    adapter: str = ""  # the digest of its adapter, "" for none
    adapter_slot: int = -1
    account: str = ""  # whose request it is: accounts share the engine fairly
    priority: int = 0  # lower runs sooner
    arrival_s: float = 0.0  # monotonic clock
    ttft_s: float | None = None  # the request's own targets, None: the model's
    tpot_s: float | None = None
    urgent: bool = True  # whether they may shorten steps
    cost_tokens: int = 0  # that its account is charged when it is admitted; 0 once it is
    scores: bool = False  # the logits of the whole prompt are output; False again when it is computed
    scored_from: int = 0  # with `scores`: the token whose logits are the first that are output
    continues: bool = False  # with `scores`: to the last token, and the prompt's full pages are shared

    rank: tuple[float, int] = (0.0, 0)  # lower is more important; total order, see Scheduler
    state: State = State.WAITING
    computed: int = 0
    has_shared: bool = False  # of its pages, some come from the prefix cache
    pages: list[int] = field(default_factory=list[int])
    state_slot: int = -1  # where a model's recurrent states of it are; its own while it is running
    cached_tokens: int = 0  # from the prefix cache, when first admitted
    cache_miss_reason: MissReason | None = None  # why `cached_tokens` is not larger
    preemptions: int = 0
    admitted: bool = False  # once at least

    @property
    def pending(self) -> int:
        """Tokens that are not computed yet."""
        return len(self.tokens) - self.computed

    @property
    def cache_root(self) -> tuple[bool, int | str, str]:
        """Its salt in the prefix tree: its key's, or where `cache` is off one of the request's own, and its
        adapter's, whose keys and values are others."""
        return (True, self.cache_salt, self.adapter) if self.cache else (False, self.request_id, self.adapter)


def agreeing(draft: list[int], tokens: list[int]) -> int:
    """How many tokens at the start of a draft equal those that were sampled."""
    count = 0
    for drafted, token in zip(draft, tokens, strict=False):
        if drafted != token:
            break
        count += 1
    return count
