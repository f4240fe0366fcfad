"""The fields that bodies of tasks have in common."""

from __future__ import annotations

from headrace.api.http.body import RequestBody
from headrace.api.openai.generation_body import (
    Deadline,
    Priority,
    TokenLimit,
    TruncationSide,
    side_alone,
    truncation_of,
)
from headrace.api.service import Service
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import Truncation
from headrace.inference.urgency import ServiceTier, urgency


class TaskBody(RequestBody, kw_only=True):
    """How urgent a task is: as of requests that generate."""

    priority: Priority | None = None
    service_tier: ServiceTier | None = None
    deadline_s: Deadline | None = None

    def runner(self, service: Service) -> ModelRunner:
        """What runs the models of this request. InvalidRequest where two fields say how urgent it is."""
        return service.runner.urgent(urgency(self.priority, self.service_tier), self.deadline_s)


class TruncatingBody(TaskBody, kw_only=True):
    """With vLLM's names for texts that may be cut: to `truncate_prompt_tokens` tokens (-1: to the model's
    context), at their end or, with `truncation_side` left, at their beginning."""

    truncate_prompt_tokens: TokenLimit | None = None
    truncation_side: TruncationSide | None = None

    def cut(self, asked: bool | None) -> bool | Truncation:
        """How texts are cut, where `asked` is what the body's other names for it say."""
        if self.truncation_side is not None and self.truncate_prompt_tokens is None:
            raise side_alone()
        return truncation_of(self.truncate_prompt_tokens, self.truncation_side or "right") or bool(asked)
