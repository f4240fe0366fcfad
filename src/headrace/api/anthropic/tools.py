"""Tools and the choice among them in Anthropic's format."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.anthropic.body import AnyChoice, NamedChoice, NoChoice, ToolChoice, ToolPart
from headrace.chat.tools import Tool, ToolUse, distinct_tools, function_tool
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext


def tool_use(tools: Sequence[ToolPart], choice: ToolChoice | None) -> ToolUse | None:
    """What the model may call; None: nothing is offered. Raises InvalidRequest naming the field."""
    offered = distinct_tools([_tool(tool, f"tools.{index}") for index, tool in enumerate(tools)])
    if not offered:
        if choice is not None and isinstance(choice, AnyChoice | NamedChoice):
            raise InvalidRequest("tool_choice needs tools: give them or leave it out", param="tool_choice")
        return None
    if choice is None:
        return ToolUse(offered, offered)
    if isinstance(choice, NoChoice):
        return None
    parallel = not choice.disable_parallel_tool_use
    if not isinstance(choice, NamedChoice):
        return ToolUse(offered, offered, "required" if isinstance(choice, AnyChoice) else "auto", parallel)
    named = tuple(tool for tool in offered if tool.name == choice.name)
    if not named:
        names = ", ".join(tool.name for tool in offered)
        raise InvalidRequest(
            f"tool_choice.name is {choice.name[:80]!r}, which is not among tools: {names}",
            param="tool_choice",
        )
    return ToolUse(offered, named, "required", parallel)


def warn_unused(tools: Sequence[ToolPart], call: CallContext) -> None:
    """Warn of what no chat template shows."""
    for index, tool in enumerate(tools):
        if tool.input_examples:
            call.warn("tools", f"tools.{index}.input_examples was accepted and has no effect")


def _tool(tool: ToolPart, where: str) -> Tool:
    if tool.defer_loading:
        raise InvalidRequest(
            f"{where}.defer_loading is not supported: tools are not searched for, leave it out", param="tools"
        )
    names = ("name", "description", "input_schema", "strict")
    return function_tool({name: getattr(tool, name) for name in names}, where, "input_schema")
