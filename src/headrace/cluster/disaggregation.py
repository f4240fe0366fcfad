"""Whether a replica for prompts reads one and its pages go to another that decodes: where that costs less."""

from __future__ import annotations

from msgspec import Struct

from headrace.cluster.prefix_index import GROUP_TOKENS
from headrace.cluster.router import RoutedRequest, Router, RoutingChoice

MIN_MOVED_TOKENS = GROUP_TOKENS
"""Of a prompt that is not cached where it is decoded: fewer are read there."""


class MoveCosts(Struct, frozen=True):
    """Seconds from the last step of a prompt until another replica has its pages: those of earlier steps are
    there by then. `token_s` is per token of that step."""

    start_s: float = 2e-3
    token_s: float = 0.0

    def seconds(self, tokens: int, step_tokens: int) -> float:
        """For so many tokens of a prompt, read in steps of so many at most."""
        return self.start_s + self.token_s * min(tokens, step_tokens)

    def learned(self, start_s: float, share: float = 0.2) -> MoveCosts:
        """After a move that took so long."""
        return MoveCosts(self.start_s + share * (start_s - self.start_s), self.token_s)


class PrefillPlan(Struct, frozen=True):
    """Who decodes, who could read the prompt for it, whether it does, and why where costs have decided."""

    target: RoutingChoice
    source: RoutingChoice
    is_apart: bool
    why: str = ""


def plan_prefill(
    router: Router,
    request: RoutedRequest,
    *,
    decode: frozenset[int],
    prefill: frozenset[int],
    moves: MoveCosts,
    always: bool = False,
) -> PrefillPlan:
    """`decode` and `prefill` are the replicas that are excluded from each.

    Read where it is decoded, a prompt delays all streams there; their seconds count as those of its own first
    token. With `always` costs do not matter.
    """
    target, source = router.choose(request, decode), router.choose(request, prefill)
    unread = request.prompt_tokens - target.cached_tokens
    number = target.replica
    if unread < MIN_MOVED_TOKENS:
        return PrefillPlan(target, source, False)
    there = router.replicas[number]
    most = there.capacity.max_batch_tokens
    costs, _ = router.costs(number)
    delay_s = costs.prompt_s(unread, target.cached_tokens, 0, 0, most)
    apart_s = source.ttft_s + moves.seconds(request.prompt_tokens - source.cached_tokens, most)
    here_s = target.ttft_s + there.streams * delay_s
    is_apart = always or apart_s < here_s
    why = (
        f"prompt read by replica {source.replica if is_apart else number}: first token predicted in "
        f"{apart_s * 1e3:.1f} ms by replica {source.replica}, in {target.ttft_s * 1e3:.1f} ms by replica "
        f"{number}, where {there.streams} streams would wait {delay_s * 1e3:.1f} ms each"
    )
    return PrefillPlan(target, source, is_apart, why)
