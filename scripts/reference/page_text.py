"""Markdown that the generated pages are made of: tables, cells, the notice on top."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

NOTICE = "<!-- Generated when the site is built. Edit {source}, not this page. -->\n"


def generated(title: str, source: str, *parts: str) -> str:
    """A whole page: a notice that names its `source`, the title, then `parts` with blank lines between."""
    return "\n\n".join([NOTICE.format(source=source).strip(), f"# {title}", *parts]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; cells keep their Markdown, pipes and line ends are escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: object) -> str:
    """A value as one cell."""
    return re.sub(r"\s*\n\s*", " ", str(value)).replace("|", "\\|")


def code(value: object) -> str:
    """Inline code, empty for an empty value."""
    text = str(value)
    return f"`{text}`" if text else ""


def sentence(text: str) -> str:
    """A help text as a sentence: it begins with a capital letter."""
    text = text.strip()
    return text[:1].upper() + text[1:]


def first_sentence(docstring: str) -> str:
    """The first sentence, or line, of a docstring."""
    return re.split(r"(?<=\.)(?<!al\.)(?<!e\.g\.)\s|\n\n", docstring.strip(), maxsplit=1)[0].replace(
        "\n", " "
    )


def docstring_of(source: str) -> str:
    """The docstring of a module's source text."""
    return ast.get_docstring(ast.parse(source)) or ""
