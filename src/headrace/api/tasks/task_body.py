"""The fields that bodies of tasks have in common."""

from __future__ import annotations

from headrace.api.http.body import RequestBody
from headrace.api.openai.generation_body import Deadline, Priority
from headrace.api.service import Service
from headrace.inference.model_runner import ModelRunner
from headrace.inference.urgency import ServiceTier, urgency


class TaskBody(RequestBody, kw_only=True):
    """How urgent a task is: as of requests that generate."""

    priority: Priority | None = None
    service_tier: ServiceTier | None = None
    deadline_s: Deadline | None = None

    def runner(self, service: Service) -> ModelRunner:
        """What runs the models of this request. InvalidRequest where two fields say how urgent it is."""
        return service.runner.urgent(urgency(self.priority, self.service_tier), self.deadline_s)
