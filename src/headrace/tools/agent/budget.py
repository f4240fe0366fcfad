"""What a run has used, and what it may still use."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from headrace.engine.request import Usage
from headrace.inference.requests import ChatRequest, RouteWishes
from headrace.tools.agent.plan import AgentBudget, StopReason
from headrace.tools.agent.steps import ModelStep

NANO = 1e9
MIN_S = 0.001
"""A step has so much time at least: 0 would be none at all."""


class BudgetUse(Struct):
    """Tokens, calls, seconds and money of a run so far, of its kept steps too. `max_usd` is what the request
    allows for the whole of it."""

    budget: AgentBudget
    max_usd: float | None = None
    tokens: int = 0
    completion: int = 0
    cached: int = 0
    tool_calls: int = 0
    seconds: float = 0.0
    nano_usd: int = 0

    def add(self, step: ModelStep) -> None:
        """An answer of the model is part of the run."""
        self.tokens += step.prompt_tokens + step.completion_tokens
        self.completion += step.completion_tokens
        self.cached += step.cached_tokens
        self.seconds += step.seconds
        self.nano_usd += step.nano_usd

    def exceeded(self, number: int) -> StopReason | None:
        """What forbids the step of that number."""
        budget = self.budget
        if number >= budget.steps:
            return "steps"
        if budget.tokens is not None and self.tokens >= budget.tokens:
            return "tokens"
        if number and self.left_usd is not None and self.left_usd <= 0:  # the first says why it cannot run
            return "usd"
        return "seconds" if budget.seconds is not None and self.seconds >= budget.seconds else None

    @property
    def left_s(self) -> float | None:
        """Seconds that are left, None where there is no bound."""
        return None if self.budget.seconds is None else max(self.budget.seconds - self.seconds, MIN_S)

    @property
    def left_usd(self) -> float | None:
        """Dollars that the request has left, None where it says nothing of them."""
        return None if self.max_usd is None else self.max_usd - self.nano_usd / NANO

    @property
    def left_calls(self) -> int:
        """Calls of tools that are left."""
        return self.budget.tool_calls - self.tool_calls

    def bounded(self, request: ChatRequest) -> ChatRequest:
        """The request of a step, with its part of the time and the money."""
        left_s, budget = self.left_s, self.budget
        if left_s is not None:
            request = replace(request, deadline_s=min(left_s, request.deadline_s or left_s))
        part = None if budget.usd is None else budget.usd / budget.steps
        bounds = [one for one in (part, self.left_usd) if one is not None]
        if bounds:
            request = replace(request, route=replace(request.route or RouteWishes(), max_usd=min(bounds)))
        return request

    def usage(self) -> Usage:
        """Of the whole run."""
        return Usage(self.tokens - self.completion, self.completion, self.cached)
