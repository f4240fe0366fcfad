"""The chain of handlers of a server, declared in one place: a request passes through it from the top down."""

from __future__ import annotations

from headrace.inference.admission import AdmissionGate, AdmissionHandler
from headrace.inference.handler import Handler
from headrace.inference.limits import LimitsHandler


def build_chain(local: Handler, gate: AdmissionGate) -> Handler:
    """Admission -> limits of the account -> local model.

    What comes between a client and a model (guardrails, cache, router, recorder, tool loop) is added here.
    """
    return AdmissionHandler(LimitsHandler(local), gate)
