"""What a request had of the steps it took part in."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ShareKind = Literal["prefill", "decode", "encode"]


class TokenCosts(Struct, frozen=True):
    """What the last steps say that tokens cost: `row_s` is what one more token adds to a step, `plain_s` a
    step of one sequence without drafts, with the loop around it; below `read_s`, which reading the weights
    takes at the machine's limit, no step comes. Seconds; 0 where nothing is known."""

    row_s: float = 0.0
    plain_s: float = 0.0
    read_s: float = 0.0


class LookupReplay(Struct, frozen=True):
    """What speculation by lookup would have brought to an answer of `tokens`: `accepted` ones of those that
    were `drafted` would have been right, and each saves a step."""

    tokens: int
    drafted: int
    accepted: int


class StepShare(Struct, frozen=True):
    """Steps that a request took part in: one with `tokens` of its prompt or input ("prefill", "encode"), or
    all that generate between two such ("decode").

    `start_s` and `end_s` count from submission. `seconds` is the time of the `steps`, of which the executor
    took `run_s` and the drafters `propose_s`; what is left of `end_s - start_s` is time between them, in
    which the request waited. `predicted_s` was expected of the steps, 0 where nothing was known. `rows` are
    the sequences of all requests in these steps, `batch_tokens` their tokens; both are sums over the steps.
    Of `drafted` tokens of this request `accepted` were right.
    """

    kind: ShareKind
    start_s: float
    end_s: float
    steps: int
    seconds: float
    run_s: float
    propose_s: float
    predicted_s: float
    tokens: int
    rows: int
    batch_tokens: int
    drafted: int = 0
    accepted: int = 0

    def merged(self, later: StepShare) -> StepShare:
        """Both as one."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        return StepShare(self.kind, self.start_s, later.end_s, **sums)


_SUMS = tuple(name for name in StepShare.__struct_fields__ if name not in ("kind", "start_s", "end_s"))
