"""Write the package tree into the README, from module docstrings; with --check only compare.

Also updates the README's line on the longest file and function.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headrace"
README = ROOT / "README.md"
MARKERS = ("<!-- tree: made by scripts/tree.py -->", "<!-- end of tree -->")


def main() -> int:
    text = README.read_text()
    before, _, rest = text.partition(MARKERS[0])
    _, _, after = rest.partition(MARKERS[1])
    wanted = f"{before}{MARKERS[0]}\n{tree()}\n\n{longest()}\n{MARKERS[1]}{after}"
    if wanted == text:
        return 0
    if "--check" in sys.argv:
        print("the README's tree is out of date: run `python scripts/tree.py`")
        return 1
    README.write_text(wanted)
    return 0


def tree() -> str:
    """One line per file: its path and the first line of its docstring."""
    lines: list[str] = []
    for path in [*sorted(PACKAGE.glob("*.py")), *sorted(PACKAGE.glob("*/**/*.py"))]:
        if "bundled" in path.parts:
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        is_room = path.name == "__init__.py"
        name = f"{path.parent.relative_to(PACKAGE)}/" if is_room else str(path.relative_to(PACKAGE))
        indent = "" if is_room or path.parent == PACKAGE else "  "
        if name == "./":
            name = "headrace"
        lines.append(f"{indent}{name:<36}{first_sentence(docstring)}")
    return "\n".join(["```text", *lines, "```"])


def first_sentence(docstring: str) -> str:
    return re.split(r"(?<=\.)(?<!al\.)\s|\n", docstring.strip(), maxsplit=1)[0]


def longest() -> str:
    """The longest file and function, over Python and C++ files and Python functions."""
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


if __name__ == "__main__":
    sys.exit(main())
