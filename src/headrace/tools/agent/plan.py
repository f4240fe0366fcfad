"""How a request is run: its tools, its budget, its checks, and what a person has decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from headrace.tools.agent.verify import AnswerCheck
from headrace.tools.tool import ToolSpec

Decision = str
"""About a call: approve, deny, or result:TEXT, what a call that was begun has given."""
StopReason = Literal[
    "stop",
    "tool_calls",
    "length",
    "approval",
    "loop",
    "steps",
    "tool_budget",
    "tokens",
    "seconds",
    "usd",
    "verification",
]


class AgentBudget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run may use. `steps` are answers of the model, `tokens` those of all its prompts and answers. Of
    `usd` each step may cost an equal part at most, so that the sum is a bound."""

    steps: int = 12
    tool_calls: int = 64
    tokens: int | None = None
    seconds: float | None = None
    usd: float | None = None


class PendingCall(Struct, frozen=True):
    """A call of an earlier answer about which a person was asked."""

    id: str
    name: str
    arguments: str


class AgentPlan(Struct, frozen=True, kw_only=True):
    """How a request is run. Calls of the tools in `approval` wait for a person, whose `decisions` are by the
    ids of calls; `pending` are calls at the end of the conversation that were decided on."""

    run_id: str
    tools: tuple[ToolSpec, ...]
    budget: AgentBudget = AgentBudget()
    checks: tuple[AnswerCheck, ...] = ()
    max_repairs: int = 1
    approval: frozenset[str] = frozenset()
    decisions: Mapping[str, Decision] = field(default_factory=dict[str, Decision])
    pending: tuple[PendingCall, ...] = ()
