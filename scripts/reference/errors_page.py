"""The page of errors: every typed error with its code, status, exit code, cause and remedy."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

from page_text import code, first_sentence, generated, table

import headrace
from headrace.errors import HeadraceError

INTRODUCTION = """Every error that a user can meet is a subclass of `headrace.errors.HeadraceError`. Its
message says the cause, the numbers, and what to do. The command line prints the message to stderr and exits
with the exit code; `LLM` raises the error; servers answer with the HTTP status.

```json
{
  "error": {
    "message": "unknown parameter 'temprature': did you mean 'temperature'?",
    "type": "invalid_request_error",
    "param": "temprature",
    "code": "unknown_parameter"
  }
}
```

Ollama's endpoints answer `{"error": "message"}` and Anthropic's `{"type": "error", "error": {...},
"request_id": "..."}`. A 429 or 503 has `Retry-After`. An error after a stream has begun is the stream's
last event."""

CODES = """Some errors have a more precise code. In messages, `…` stands for a value."""
PACKAGE = Path(headrace.__file__).parent


def page() -> str:
    """The whole page."""
    return generated(
        "Errors",
        "src/headrace/errors.py",
        INTRODUCTION,
        "## All errors",
        table(["error and code", "HTTP", "exit", "cause", "remedy"], [_row(kind) for kind in error_types()]),
        "## Precise codes",
        CODES,
        table(["code", "HTTP", "example of a message"], _codes()),
    )


def error_types() -> list[type[HeadraceError]]:
    """All typed errors of the package: the base's in the order of their file, then those of the servers."""
    for path in sorted(PACKAGE.glob("api/**/errors.py")):
        importlib.import_module(".".join(("headrace", *path.relative_to(PACKAGE).with_suffix("").parts)))
    found: list[type[HeadraceError]] = []
    todo = [HeadraceError]
    while todo:
        kind = todo.pop(0)
        found.append(kind)
        todo += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.startswith("headrace.")]


def _row(kind: type[HeadraceError]) -> tuple[str, ...]:
    cause = first_sentence(kind.__doc__ or "")
    name = "<br>".join(code(text) for text in (kind.__name__, kind.code) if text)
    return name, str(kind.status), str(kind.exit_code), cause, kind.remedy


def _codes() -> list[tuple[str, ...]]:
    """Codes that are given where an error is raised: with the error's status and the first message."""
    statuses = {kind.__name__: kind.status for kind in error_types()}
    rows: dict[str, tuple[str, ...]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name, given, message in _raised(path):
            if name in statuses:
                rows.setdefault(given, (code(given), str(statuses[name]), message))
    return [rows[key] for key in sorted(rows)]


def _raised(path: Path) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        for keyword in node.keywords:
            if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                yield node.func.id, str(keyword.value.value), _message(node.args[0])


def _message(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_message(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""
