"""Tools of a request, and the tool choice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import Struct

from headrace.errors import InvalidRequest

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")

Mode = Literal["auto", "required"]


class Tool(Struct, frozen=True):
    """A function that the model may call; `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False

    def for_template(self) -> dict[str, Any]:
        """The dictionary that templates expect."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @property
    def properties(self) -> Mapping[str, Any]:
        """Schemas of the arguments by name, each with the definitions that it may reference."""
        shared = {key: self.parameters[key] for key in ("$defs", "definitions") if key in self.parameters}
        entries = _mapping(self.parameters.get("properties"))
        if not shared:
            return entries
        return {key: {**_mapping(entry), **shared} for key, entry in entries.items()}

    @property
    def required(self) -> frozenset[str]:
        """Names of the required arguments."""
        names = self.parameters.get("required")
        return frozenset(cast("list[str]", names)) if isinstance(names, list) else frozenset()


class ToolUse(Struct, frozen=True):
    """The tools of a request. The template shows `offered`; the model may call only `callable`."""

    offered: tuple[Tool, ...] = ()
    callable: tuple[Tool, ...] = ()
    mode: Mode = "auto"
    parallel: bool = True


def tool_use_from_openai(tools: object, choice: object = None, parallel: object = None) -> ToolUse | None:
    """Validate `tools`, `tool_choice` and `parallel_tool_calls`; None if there are no tools.

    With tool_choice "none" the model does not see the tools. Raises InvalidRequest naming the field.
    """
    if parallel is not None and not isinstance(parallel, bool):
        raise InvalidRequest("parallel_tool_calls is neither true nor false", param="parallel_tool_calls")
    offered = _tools(tools)
    if not offered:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice needs tools: give them or leave it out", param="tool_choice")
        return None
    if choice == "none":
        return None
    allowed, mode = _choice(choice, [tool.name for tool in offered])
    callable_ = tuple(tool for tool in offered if allowed is None or tool.name in allowed)
    return ToolUse(offered, callable_, mode, parallel is not False)


def _tools(tools: object) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list | tuple):
        raise InvalidRequest("tools is not a list", param="tools")
    items = cast(Sequence[object], tools)
    return distinct_tools([_tool(item, f"tools[{index}]") for index, item in enumerate(items)])


def distinct_tools(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The tools; raises InvalidRequest for duplicate names or too many tools."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools has {len(tools)} entries, at most {MAX_TOOLS} are taken", param="tools")
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(
                f"tools[{index}] has the same name {name!r} as another tool: rename it", param="tools"
            )
    return tuple(tools)


def _tool(item: object, where: str) -> Tool:
    fields = _object(item, where)
    if fields.get("type") != "function":
        raise InvalidRequest(
            f"{where}.type is {fields.get('type')!r:.60}: only tools of type 'function' are supported",
            param="tools",
        )
    function = _object(fields.get("function"), f"{where}.function")
    for key in [*(fields.keys() - {"type", "function"}), *(function.keys() - set(_FUNCTION_KEYS))]:
        raise InvalidRequest(f"{where} has the unknown field {key!r:.60}: remove it", param="tools")
    return function_tool(function, f"{where}.function")


def function_tool(fields: Mapping[str, Any], where: str, schema_key: str = "parameters") -> Tool:
    """The tool that `fields` at `where` describe, with its schema under `schema_key`."""
    name, description = fields.get("name"), fields.get("description") or ""
    parameters, strict = fields.get(schema_key) or _NO_ARGUMENTS, fields.get("strict") or False
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{where}.name is {name!r:.80}: 1 to 64 of the characters a-z A-Z 0-9 _ -", param="tools"
        )
    if not isinstance(description, str) or not isinstance(strict, bool):
        raise InvalidRequest(f"{where}: description is a text, strict is true or false", param="tools")
    schema = _object(parameters, f"{where}.{schema_key}")
    if schema.get("type", "object") != "object":
        raise InvalidRequest(
            f"{where}.{schema_key} has the type {schema['type']!r:.60}: arguments are an object",
            param="tools",
        )
    return Tool(name, description, schema, strict)


def _choice(choice: object, names: list[str]) -> tuple[list[str] | None, Mode]:
    """Names of the callable tools (None: all), and whether a call is required."""
    if choice in (None, "auto"):
        return None, "auto"
    if choice in ("required", "any"):  # Mistral's word
        return None, "required"
    fields = cast("dict[str, Any]", choice) if isinstance(choice, dict) else {}
    if fields.get("type") == "function":
        return [_known_name(fields.get("function"), names, "tool_choice.function")], "required"
    if fields.get("type") != "allowed_tools":
        raise InvalidRequest(
            "tool_choice is not one of 'none', 'auto', 'required', 'any', a function, allowed_tools",
            param="tool_choice",
        )
    allowed = _object(fields.get("allowed_tools", fields), "tool_choice.allowed_tools")
    mode, listed = allowed.get("mode", "auto"), allowed.get("tools")
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise InvalidRequest(
            "tool_choice.allowed_tools needs a mode (auto or required) and a list of tools",
            param="tool_choice",
        )
    where = "tool_choice.allowed_tools.tools"
    entries = [_object(item, where) for item in cast("list[object]", listed)]
    return [_known_name(entry.get("function", entry), names, where) for entry in entries], mode


def _known_name(value: object, names: list[str], where: str) -> str:
    name = _object(value, where).get("name")
    if not isinstance(name, str) or name not in names:
        raise InvalidRequest(
            f"{where} names {name!r:.80}, which is not among tools: {', '.join(names)}", param="tool_choice"
        )
    return name


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        param = where.split("[")[0].split(".")[0]
        raise InvalidRequest(f"{where} is not an object", param=param)
    return cast("dict[str, Any]", value)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
