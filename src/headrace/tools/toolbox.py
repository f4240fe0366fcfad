"""All tools that a key may use: those of this server, and those of MCP servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from headrace.config.names import suggestion
from headrace.inference.call_context import CallContext, StageNote
from headrace.tools.tool import Arguments, ServedTools, ToolResult, ToolSpec, UnknownTool

TOOL = "tool"
"""The name of the part that a call of a tool is."""
Run = Callable[[Arguments, CallContext], Awaitable[ToolResult]]


class OwnTool(Struct, frozen=True):
    """A tool of this server."""

    spec: ToolSpec
    run: Run


class OwnTools:
    """The tools of this server. Their names have no `__`, so that no server's tool takes one's place."""

    def __init__(self, tools: Sequence[OwnTool], check: Callable[[str, Arguments, dict[str, object]], None]):
        """`check` raises ToolRefused where arguments do not match a schema."""
        self._tools = {tool.spec.name: tool for tool in tools}
        self._check = check

    def specs(self, call: CallContext) -> list[ToolSpec]:
        """See `ServedTools.specs`."""
        return [tool.spec for tool in self._tools.values()]

    async def run(self, name: str, arguments: Arguments, call: CallContext, key: str = "") -> ToolResult:
        """See `ServedTools.run`."""
        tool = self._tools.get(name)
        if tool is None:
            raise UnknownTool(f"there is no tool {name[:100]!r}", param="name")
        self._check(name, arguments, tool.spec.parameters)
        with tool_part(call, name, arguments) as (own, note):
            return noted(note, await tool.run(arguments, own))


@contextmanager
def tool_part(
    call: CallContext, name: str, arguments: Arguments, server: str = ""
) -> Generator[tuple[CallContext, StageNote]]:
    """The part of a call that a tool is."""
    with call.part(TOOL, tool=name, **({"server": server} if server else {})) as (own, note):
        note.input = msgspec.json.encode(arguments).decode()
        yield own, note


def noted(note: StageNote, result: ToolResult) -> ToolResult:
    """The result, which is noted."""
    note.detail["bytes"], note.output = len(result.text), result.text
    if result.is_error:
        note.error = "tool_error"
    return result


class Toolbox:
    """Several origins of tools as one."""

    def __init__(self, own: ServedTools, others: ServedTools | None = None) -> None:
        self._own, self._others = own, others

    def specs(self, call: CallContext) -> list[ToolSpec]:
        """See `ServedTools.specs`."""
        return [*self._own.specs(call), *(self._others.specs(call) if self._others is not None else ())]

    async def run(self, name: str, arguments: Arguments, call: CallContext, key: str = "") -> ToolResult:
        """See `ServedTools.run`."""
        if "__" in name and self._others is not None:
            return await self._others.run(name, arguments, call, key)
        names = [spec.name for spec in self.specs(call)]
        if name not in names:
            raise UnknownTool(f"there is no tool {name[:100]!r}{suggestion(name, names)}", param="name")
        return await self._own.run(name, arguments, call, key)
