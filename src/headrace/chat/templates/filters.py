"""Filters and functions for chat templates, each with a limit on the size of its result."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from jinja2 import pass_context
from jinja2.filters import FILTERS  # pyright: ignore[reportUnknownVariableType]
from jinja2.runtime import Context

from headrace.chat.templates.limits import check_percent, check_repeat, check_replace
from headrace.chat.templates.render_budget import VALUE_LIMIT_BYTES, Budget
from headrace.errors import TemplateError

BUDGET = "#budget"  # templates cannot use names with '#'
_BUILT_IN = """
    abs attr batch capitalize center count d default dictsort e escape first float forceescape format
    groupby indent int items join last length list lower map max min reject rejectattr replace reverse
    round safe select selectattr slice sort string sum title trim truncate unique upper urlencode wordcount
    """


def budget_of(context: Context) -> Budget:
    """The budget of the rendering that a context belongs to."""
    return cast(Budget, context.parent[BUDGET])


def filters() -> dict[str, Callable[..., Any]]:
    """All filters by name. Those with '#' are inserted by the sandbox; templates cannot name them."""
    known = cast(dict[str, Callable[..., Any]], FILTERS)
    bounded = {name: _bounded(name, known[name]) for name in _BUILT_IN.split()}
    return bounded | {"tojson": _to_json, "#concat": _concat, "#admit": _admit, "#tick": _tick}


@pass_context
def _tick(context: Context, _: object) -> bool:
    budget_of(context).tick()
    return True


@pass_context
def _admit(context: Context, value: Any) -> Any:
    return budget_of(context).admit(value)


@pass_context
def _concat(context: Context, parts: list[Any]) -> str:
    budget = budget_of(context)
    budget.weigh(parts)
    return budget.admit("".join([str(part) for part in parts]))


def raise_exception(message: object) -> None:
    raise TemplateError(f"the chat template refuses these messages: {str(message)[:2000]}")


@pass_context
def _to_json(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as `transformers` formats it for templates: no HTML escapes, keys in original order."""
    budget = budget_of(context)
    budget.weigh(value)
    if isinstance(indent, int):
        check_repeat(indent)
        indent = " " * indent
    budget.weigh([indent, separators])
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None and separators is None:
        return budget.admit(encoder.encode(value))
    chunks: list[str] = []
    size = 0
    for chunk in encoder.iterencode(value):
        budget.tick()
        size += len(chunk)
        if size > VALUE_LIMIT_BYTES:
            budget.check(size)
        chunks.append(chunk)
    return budget.admit("".join(chunks))


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a built-in filter: check its arguments before, and admit its result after.

    It takes the context, which also prevents Jinja from running it on constants while compiling.
    """
    wanted = getattr(function, "jinja_pass_arg", None)
    check = _FILTER_CHECKS.get(name)

    @pass_context
    def run(context: Context, *args: Any, **kwargs: Any) -> Any:
        budget = budget_of(context)
        budget.tick()
        if check is not None:
            args = check(budget, args, kwargs)
        if wanted is None:
            return budget.admit(function(*args, **kwargs))
        passed = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        return budget.admit(function(passed[wanted.name], *args, **kwargs))

    return run


def _check_numbers(budget: Budget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """For filters whose numbers are widths, counts or precisions."""
    check_repeat(*args[1:], *kwargs.values())
    return args


def _check_round(budget: Budget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    for precision in (*args[1:2], kwargs.get("precision", 0)):
        if isinstance(precision, (int, float)) and abs(precision) > 20:
            raise TemplateError(f"round takes a precision of at most 20 digits, got {precision!r:.40}")
    return args


def _check_indent(budget: Budget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    width = kwargs.get("width", args[1] if len(args) > 1 else 4)
    check_repeat(width)
    text = str(args[0]) if args else ""
    budget.check(len(text) + (text.count("\n") + 1) * (len(width) if isinstance(width, str) else int(width)))
    return args


def _check_format(budget: Budget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    check_percent(budget, str(args[0]), (args[1:], kwargs))
    return args


def _check_replace(budget: Budget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    named = [str(kwargs[key]) for key in ("old", "new") if key in kwargs]
    text, old, new = [str(arg) for arg in args[:3]] + named
    check_replace(budget, text, old, new)
    return args


def _check_join(budget: Budget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    parts = [] if not args else list(_ticked(budget, args[0]))
    separator = kwargs.get("d", args[1] if len(args) > 1 else "")
    budget.check(budget.weigh(parts) + len(parts) * len(str(separator)))
    return (parts, *args[1:])


def _check_sum(budget: Budget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    start = kwargs.get("start", args[2] if len(args) > 2 else 0)
    if not isinstance(start, (int, float)):
        raise TemplateError(f"sum adds numbers only, its start is {start!r:.40}")
    return args


def _ticked(budget: Budget, values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        budget.tick()
        yield value


def _check_collect(budget: Budget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """For filters that read their whole input: iterate it with clock checks, and check its size first."""
    if not args or isinstance(args[0], (str, Mapping)) or not isinstance(args[0], Iterable):
        return args
    values = list(_ticked(budget, cast(Iterable[Any], args[0])))
    budget.weigh(values)
    return (values, *args[1:])


_Check = Callable[[Budget, tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]
_FILTER_CHECKS: dict[str, _Check] = {
    "batch": _check_numbers,
    "center": _check_numbers,
    "format": _check_format,
    "indent": _check_indent,
    "join": _check_join,
    "replace": _check_replace,
    "round": _check_round,
    "slice": _check_numbers,
    "sum": _check_sum,
    "truncate": _check_numbers,
} | dict.fromkeys(("groupby", "last", "list", "max", "min", "reverse", "sort", "unique"), _check_collect)
