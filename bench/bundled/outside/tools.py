"""Requests with tools, scored by the schemas of the functions and the values of the arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .case import Answer, Case, lines_of

Call = tuple[str, dict[str, str]]
_CALL = re.compile(r"(\w+)\(((?:[^()]|\([^()]*\))*)\)")


def cases() -> Iterator[Case]:
    """One for each request."""
    functions: dict[str, dict[str, Any]] = {}
    for line in lines_of("tools.txt"):
        if line.startswith("@ "):
            made = _function(line[2:])
            functions[made["name"]] = made
        elif line:
            names, rest = line.split(" | ", 1)
            request, wanted = rest.split(" => ", 1)
            yield _case([functions[name] for name in names.split(", ")], request, wanted)


def _function(line: str) -> dict[str, Any]:
    found = re.fullmatch(r"(\w+)\((.*)\): (.+)", line)
    assert found is not None, line
    properties: dict[str, Any] = {}
    required: list[str] = []
    for one in found[2].split(", "):
        name, kind = one.split(": ")
        if not name.endswith("?"):
            required.append(name)
        is_enum = "|" in kind
        properties[name.rstrip("?")] = (
            {"type": "string", "enum": kind.split("|")} if is_enum else {"type": kind}
        )
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": found[1], "description": found[3], "parameters": schema}


def _case(functions: list[dict[str, Any]], request: str, wanted: str) -> Case:
    calls = [] if wanted in ("none", "ask") else [_wanted(*found) for found in _CALL.findall(wanted)]
    schemas = {one["name"]: one["parameters"] for one in functions}
    kind = wanted if wanted in ("none", "ask") else "parallel" if len(calls) > 1 else "single"

    def is_right(answer: Answer) -> bool:
        return scored(schemas, calls, answer)

    tools = [{"type": "function", "function": one} for one in functions]
    return Case(f"tools, {kind}", request, wanted, is_right, tools)


def _wanted(name: str, arguments: str) -> Call:
    pairs = re.findall(r"(\w+)=(.*?)(?:, (?=\w+=)|$)", arguments)
    return name, dict(pairs)


def scored(schemas: dict[str, dict[str, Any]], wanted: list[Call], answer: Answer) -> bool:
    """Whether these are the calls, in any order, valid under their schemas; without calls some text."""
    if len(answer.calls) != len(wanted):
        return False
    if not wanted:
        return bool(answer.text.strip()) and "tool_call" not in answer.text and "{" not in answer.text
    if not all(name in schemas and is_valid(schemas[name], given) for name, given in answer.calls):
        return False
    left = list(answer.calls)
    for name, values in wanted:
        found = next((one for one in left if one[0] == name and _fits(values, one[1])), None)
        if found is None:
            return False
        left.remove(found)
    return True


def is_valid(schema: dict[str, Any], given: dict[str, Any]) -> bool:
    """Whether arguments have the types and names of a schema, and all that are required."""
    kinds: dict[str, Any] = {"string": str, "integer": int, "number": (int, float)}
    properties = schema["properties"]
    return set(schema["required"]) <= set(given) and all(
        name in properties
        and isinstance(value, kinds[properties[name]["type"]])
        and not isinstance(value, bool)
        and value in properties[name].get("enum", [value])
        for name, value in given.items()
    )


def _fits(wanted: dict[str, str], given: dict[str, Any]) -> bool:
    return set(wanted) == set(given) and all(_value_fits(one, given[name]) for name, one in wanted.items())


def _value_fits(wanted: str, given: object) -> bool:
    if wanted.startswith("~"):
        return re.fullmatch(wanted[1:], str(given).strip(), re.IGNORECASE) is not None
    if isinstance(given, int | float):
        return re.fullmatch(r"-?\d+(\.\d+)?", wanted) is not None and float(wanted) == float(given)
    return str(given) == wanted
