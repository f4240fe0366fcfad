"""A request that waits as a whole: what a fair queue asks of it."""

from __future__ import annotations

from msgspec import Struct

from headrace.engine.request import EngineRequest


class RankedRequest(Struct, eq=False):
    """A request that waits as a whole; `rank` is set before it does."""

    request: EngineRequest

    @property
    def account(self) -> str:
        """Whose it is."""
        return self.request.account

    @property
    def priority(self) -> int:
        """As the request has it."""
        return self.request.priority

    @property
    def cost_tokens(self) -> int:
        """Of the prompt and of all answers: none where the prompt is encoded."""
        params, prompt_tokens = self.request.params, len(self.request.prompt)
        if self.request.embed is not None:
            return prompt_tokens
        return params.n * (prompt_tokens + (params.max_tokens or 0))
