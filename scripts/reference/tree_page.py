"""The page of the source tree: one line a file, from the modules' docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

from page_text import docstring_of, first_sentence, generated

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "headrace"
INTRODUCTION = """A folder is
a stage, a file is a noun, and a file imports only lower ranks (`tests/test_ranks.py`). Each line below is
the first sentence of the file's docstring."""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, longest()]
    for folder in [PACKAGE, *sorted(path for path in PACKAGE.iterdir() if (path / "__init__.py").exists())]:
        parts += [f"## {_title(folder)}", "```text\n" + "\n".join(_lines(folder)) + "\n```"]
    return generated("Source tree", "the docstrings of the modules", *parts)


def _title(folder: Path) -> str:
    return "headrace" if folder == PACKAGE else f"{folder.name}/"


def _lines(folder: Path) -> list[str]:
    paths = sorted(folder.glob("*.py") if folder == PACKAGE else folder.rglob("*.py"))
    lines: list[str] = []
    for path in paths:
        name = str(path.relative_to(folder))
        if name.endswith("__init__.py") and path.parent != folder:
            name = name.removesuffix("__init__.py")
        sentence = first_sentence(docstring_of(path.read_text()))
        if path.name != "__init__.py":
            lines.append(f"{name:<40} {sentence}")
        elif folder != PACKAGE:
            lines.append(f"{name.removesuffix('__init__.py') or './':<40} {sentence}")
    return lines


def longest() -> str:
    """Which file and which function are the longest, over Python and C++ files and Python functions."""
    sources = [*PACKAGE.rglob("*.py"), *(ROOT / "native").rglob("*.[ch]pp")]
    lines, file = max((len(path.read_text().splitlines()), path) for path in sources)
    functions = [
        (node.end_lineno - node.lineno + 1, node.name, path)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    size, name, where = max(functions, key=lambda found: found[0])
    return (
        f"Longest file: `{file.relative_to(ROOT)}`, {lines} lines. "
        f"Longest Python function: `{name}` in `{where.relative_to(ROOT)}`, {size} lines."
    )
