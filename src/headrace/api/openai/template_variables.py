"""What a chat template is given besides the messages: the caller's own variables, and how much to reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.inference.events import ParameterWarning

_SWITCHES = ("enable_thinking", "thinking")


def template_variables(
    given: Mapping[str, Any] | None, effort: str | None, reads: frozenset[str]
) -> dict[str, Any]:
    """Variables for a template that looks at `reads`; what is `given` by name goes before `effort`."""
    variables = dict(given or {})
    if effort is not None:
        if "reasoning_effort" in reads:
            variables.setdefault("reasoning_effort", effort)
        elif effort == "none":
            for name in _SWITCHES:
                if name in reads:
                    variables.setdefault(name, False)
    return variables


def idle_variables(
    given: Mapping[str, Any] | None, effort: str | None, reads: frozenset[str], effort_name: str
) -> list[ParameterWarning]:
    """Warnings for what the template does not look at; `effort_name` is the effort's parameter."""
    names = [f"chat_template_kwargs.{name}" for name in given or {} if name not in reads]
    switches = set(_SWITCHES) if effort == "none" else set[str]()
    if effort is not None and not reads & {"reasoning_effort", *switches}:
        names.append(effort_name)
    message = "has no effect: this model's chat template does not read it"
    return [ParameterWarning(name, f"{name} {message}") for name in names]
