"""Patterns, formats and lengths of texts, as llguidance writes them."""

from __future__ import annotations

from headrace.grammar.patterns import FORMAT_PATTERNS, NATIVE_FORMATS, rust_pattern
from headrace.grammar.schema.keywords import Schema, Unsupported
from headrace.grammar.schema.negation import RAW_PATTERN


def translated(pattern: str, keyword: str, at: str) -> str:
    """A pattern in Rust's dialect. Raises Unsupported."""
    try:
        return rust_pattern(pattern)
    except ValueError as error:
        raise Unsupported(keyword, at, f"has {error}") from None


def with_patterns(node: Schema, at: str) -> Schema:
    """The node with its pattern in Rust's dialect, and with its format as a pattern where llguidance is too
    lenient. A format that is not checked is gone."""
    out = dict(node)
    patterns = [out.pop(RAW_PATTERN)] if RAW_PATTERN in out else []
    if "pattern" in out:
        patterns.append(translated(out.pop("pattern"), "pattern", at))
    name = out.get("format")
    if name is not None and name not in NATIVE_FORMATS:
        del out["format"]
        if name in FORMAT_PATTERNS:
            patterns.append(FORMAT_PATTERNS[name])
    more: list[Schema] = [{"pattern": pattern} for pattern in patterns[1:]]
    if name in ("hostname", "idn-hostname"):
        more.append({"maxLength": 253})
    if patterns:
        out["pattern"] = patterns[0]
    if more:
        out["allOf"] = [*out.get("allOf", []), *more]
    return out


def pattern_of(node: Schema, at: str) -> list[str]:
    """What a schema says of names: patterns in ECMA-262's dialect, at most one for the length."""
    found = [node["pattern"]] if "pattern" in node else []
    name = node.get("format")
    if name in FORMAT_PATTERNS:
        found.append(FORMAT_PATTERNS[name])
    elif name in NATIVE_FORMATS:
        raise Unsupported("format", f"{at}/propertyNames", f"is {name!r}, which is not supported there")
    least, most = node.get("minLength", 0), node.get("maxLength", "")
    if least or most != "":
        found.append(rf"^[\s\S]{{{least},{most}}}$")
    return found
