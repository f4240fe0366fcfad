"""Patterns of JSON Schema: ECMA-262 regular expressions in Rust's dialect, and formats as patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# Rust's \s and `.` differ from ECMA-262's by a few characters: ES2024, WhiteSpace and LineTerminator.
_SPACE: Final = r"\t\n\x0B\x0C\r \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF"
_OPENING, _CLOSING = "([{", ")]}"
_NOT_NEWLINE: Final = r"[^\n\r\u2028\u2029]"


def lark_regex(pattern: str) -> str:
    r"""A pattern of Rust's as it stands between slashes in Lark: `/` as `\/`, a line break as `\n`."""
    written = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
    return re.sub(r"\\.|/|\n", lambda part: written.get(part[0], part[0]), pattern, flags=re.DOTALL)


def nesting(text: str) -> int:
    """How deeply brackets are nested. Those in quotes and classes count too."""
    depth = deepest = 0
    for bracket in re.findall(r"\\.|[][(){}]", text, re.DOTALL):
        if bracket in _OPENING:
            depth += 1
        elif bracket in _CLOSING:
            depth = max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest


def escaped(character: str) -> str:
    """A character as it may stand anywhere in a pattern of Rust's, also inside `[...]`."""
    plain = character.isascii() and character.isalnum()
    return character if plain else f"\\u{{{ord(character):x}}}"


def not_beginning_with(beginnings: Iterable[str]) -> str:
    """A pattern of Rust's for all texts that begin with none of some."""
    following: dict[str, set[str]] = {"": set()}
    for text in beginnings:
        for end, character in enumerate(text):
            following.setdefault(text[:end], set()).add(character)
    options: list[str] = []
    for begun, characters in following.items():
        other = "".join(map(escaped, sorted(characters)))
        options.append(f"{''.join(map(escaped, begun))}([^{other}](?s:.*))?")
    return "|".join(options)


def rust_pattern(pattern: str) -> str:
    r"""An ECMA-262 pattern as one that means the same in Rust's `regex`.

    `\d` and `\w` stay as they are: llguidance reads them as ASCII in schemas. Raises ValueError for what
    Rust would read in another sense.
    """
    out: list[str] = []
    in_class = False
    index = 0
    while index < len(pattern):
        character = pattern[index]
        if character == "\\":
            out.append(_escape(pattern[index : index + 2]))
            index += 2
            continue
        if in_class and pattern.startswith("--", index):
            raise ValueError("'--' inside [...]: escape the hyphens")
        if in_class and character in "[&~":  # set notation in Rust, plain characters in ECMA-262
            character = "\\" + character
        elif character == "[":
            in_class = True
        elif character == "]":
            in_class = False
        elif character == "." and not in_class:
            character = _NOT_NEWLINE
        out.append(character)
        index += 1
    return "".join(out)


def _escape(escape: str) -> str:
    if escape == r"\s":
        return f"[{_SPACE}]"
    if escape == r"\S":
        return f"[^{_SPACE}]"
    if escape in (r"\A", r"\z", r"\Z", r"\<", r"\>"):  # anchors in Rust, letters in ECMA-262
        raise ValueError(f"{escape}, which is no escape of ECMA-262")
    return escape


def _format_patterns() -> dict[str, str]:
    leap_year = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
    month_day = r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    date = rf"(?:[0-9]{{4}}-{month_day}|02-(?:0[1-9]|1[0-9]|2[0-8]))|{leap_year}-02-29)"
    offset = r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    time = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?{offset}"
    inner = r"[A-Za-z0-9-]{0,60}[A-Za-z0-9]"
    # No hyphens as third and fourth character: what may follow `xn--` is more than a pattern can say.
    label = (
        r"[A-Za-z0-9](?:[A-Za-z0-9]|[A-Za-z0-9-][A-Za-z0-9]|[A-Za-z0-9-][A-Za-z0-9][A-Za-z0-9-]{0,59}"
        r"[A-Za-z0-9]|[A-Za-z0-9-]-[A-Za-z0-9](?:" + inner.replace("60", "58") + r")?)?"
    )
    host = rf"{label}(?:\.{label})*"
    return {
        "date": date,
        "time": time,
        "date-time": rf"{date}[Tt]{time}",
        "hostname": host,
        "idn-hostname": host,
        **_reference_patterns(host),
    }


def _reference_patterns(host: str) -> dict[str, str]:
    """Pointers and references. Of references only the usual ones: relative, or of http, in ASCII."""
    pointer = "(?:/(?:[^~/]|~[01])*)*"
    letter = r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
    path = rf"(?:https?://{host}(?::[0-9]{{1,5}})?(?:/{letter}*)*|/?(?:{letter}+(?:/{letter}*)*)?)"
    reference = rf"{path}(?:\?(?:{letter}|[:/?])*)?(?:#(?:{letter}|[:/?])*)?"
    variable = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*(?::[1-9][0-9]{0,3}|\*)?"
    template = rf"(?:{letter}|[:/?#]|\{{[+#./;?&]?{variable}(?:,{variable})*\}})*"
    return {
        "json-pointer": pointer,
        "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{pointer})",
        "uri-reference": reference,
        "iri-reference": reference,
        "uri-template": template,
    }


FORMAT_PATTERNS: Final = {name: f"^(?:{pattern})$" for name, pattern in _format_patterns().items()}
"""Formats whose pattern in llguidance admits texts that are none: February 29 of any year, 22:59:60.

Leap seconds, labels like `xn--…`, and all that is not ASCII in names of hosts and references are left out
altogether (RFC 3339, RFC 1123, RFC 5890, RFC 3987).
"""

NATIVE_FORMATS: Final = frozenset({"duration", "email", "ipv4", "ipv6", "uuid", "uri"})
"""Formats that llguidance keeps exactly."""

NARROWER_FORMATS: Final = {"iri": "uri", "idn-email": "email"}
"""Formats of which only the ASCII part is generated, by the format that this part is."""
