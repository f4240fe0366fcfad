"""The house's order: a file imports only lower ranks (its own folder aside), and at its top."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("ranks")  # each file is parsed once
PACKAGE = Path(__file__).resolve().parent.parent / "src" / "headrace"

RANKS = {
    "errors": -1,  # below everything: any file may raise
    "_native": 0,
    "config": 0,
    "isolation": 0,
    "json_text": 0,
    "struct_types": 0,
    "ops": 1,
    "kv": 1,
    "tokenization": 1,
    "grammar": 1,
    "storage": 1,
    "sampling": 2,
    "chat": 3,
    "weights": 4,
    "models": 5,
    "program": 5,
    "executors": 6,
    "heads": 6,
    "engine": 7,
    "loading": 8,
    "telemetry": 9,
    "workers": 9,
    "compress": 9,
    "inference": 10,
    "tasks": 11,
    "providers": 11,
    "search": 12,
    "tools": 11,
    "journal": 8,  # below the workers; the engine knows nothing of it
    "gateway": 12,
    "economy": 12,
    "adapt": 13,
    "elastic": 12,
    "cluster": 13,
    "simulate": 14,
    "evals": 12,
    "data": 13,  # models answer functions of SQL, with prices
    "bench": 10,
    "flight": 14,  # calls the endpoints of api without importing it
    "llm": 14,
    "api": 14,
    "agents": 15,
    "distil": 15,
    "cli": 16,
    "__main__": 17,
    "__init__": 17,
}
FORBIDDEN_ROOMS = {"utils", "common", "core", "helpers", "manager"}
FORBIDDEN_NAMES = {"pickle", "cPickle", "dill", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec"}
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
assert FILES


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports_of(tree: ast.AST) -> list[tuple[ast.AST, str]]:
    found: list[tuple[ast.AST, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import on line {node.lineno}"
            module = node.module or ""
            found += [(node, f"{module}.{alias.name}") for alias in node.names]
    return found


def test_imports_go_down() -> None:
    for path in FILES:
        check_imports(path)


def check_imports(path: Path) -> None:
    room = room_of(path)
    tree = tree_of(path)
    inside_functions = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node, name in imports_of(tree):
        parts = name.split(".")
        assert parts[0] not in FORBIDDEN_NAMES, f"{path.name} imports {name}"
        if parts[0] != "headrace" or id(node) in typing_only:
            continue
        target = parts[1] if len(parts) > 1 and parts[1] in RANKS else "__init__"
        if target == "__init__" and len(parts) == 2:
            target = "errors" if parts[1] == "__version__" else target
        assert id(node) not in inside_functions, f"{path.name} imports {name} inside a function"
        assert target == room or RANKS[target] < RANKS[room], f"{room}/{path.name} may not import {name}"


def test_every_room_is_known() -> None:
    for path in FILES:
        assert room_of(path) in RANKS or path.parent.name == "bundled", path
        assert not FORBIDDEN_ROOMS & set(path.relative_to(PACKAGE).with_suffix("").parts), path


def test_a_class_name_stands_for_one_thing() -> None:
    """Besides `api`, where the dialects may each have a body of the same name."""
    homes: dict[str, list[str]] = {}
    for path in FILES:
        if room_of(path) != "api":
            for node in tree_of(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def test_nothing_unsafe_is_called() -> None:
    for path in FILES:
        check_calls(path)


def check_calls(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            plain = isinstance(called, ast.Name)
            assert not (plain and name in FORBIDDEN_CALLS), f"{path.name}:{node.lineno} calls {name}"
            is_torch_load = (
                name == "load" and isinstance(called, ast.Attribute) and ast.unparse(called) == "torch.load"
            )
            assert not is_torch_load, f"{path.name}:{node.lineno} calls torch.load"


def test_no_cycles() -> None:
    edges: dict[str, set[str]] = {}
    for path in FILES:
        name = ".".join(("headrace", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        edges[name] = set()
        for _, target in imports_of(tree_of(path)):
            if target.startswith("headrace."):
                edges[name].add(target)
    names = set(edges)
    resolved = {
        source: {t if t in names else t.rpartition(".")[0] for t in targets} & names - {source}
        for source, targets in edges.items()
        if source != "headrace"  # it only re-exports, lazily
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for target in sorted(resolved.get(name, ())):
                visit(target, (*path, name))
            done.add(name)

    for name in sorted(resolved):
        visit(name, ())


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by their names alone: a second one of a name stops the whole run."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
