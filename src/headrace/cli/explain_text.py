"""EXPLAIN of a request as text."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from headrace.cli.terminal import printable
from headrace.telemetry.explain_node import ExplainNode

_BAR = 24  # characters


def explain_text(root: ExplainNode) -> str:
    """A line for each part, indented by its depth: its name, measured and predicted milliseconds, its share
    of the whole as a bar, and details. Shares of what is not computed are those of the prediction."""
    lines = list(_lines(root, _seconds(root), ""))
    width = max(len(name) for name, *_ in lines)
    wide = max(10, *(len(one) for _, *times, _, _ in lines for one in times))
    head = f"{'part':<{width}}  {'measured':>{wide}}  {'predicted':>{wide}}  {'share':<{_BAR}}"
    rows = [
        f"{name:<{width}}  {took:>{wide}}  {said:>{wide}}  {bar:<{_BAR}}  {more}"
        for name, took, said, bar, more in lines
    ]
    advice = () if root.detail is UNSET else root.detail.get("advice", ())
    said = [f"\n{one['lever'].replace('_', ' ')}: {one['text']}" for one in advice]
    return "\n".join(printable(row.rstrip()) for row in (head, *rows)) + "".join(said)


def _lines(node: ExplainNode, whole_s: float, indent: str) -> Iterator[tuple[str, str, str, str, str]]:
    predicted = "" if node.predicted_s is UNSET else _ms(node.predicted_s)
    bar = "█" * round(_BAR * min(_seconds(node) / whole_s, 1.0)) if whole_s > 0 else ""
    facts = {} if node.detail is UNSET else {k: v for k, v in node.detail.items() if k != "advice"}
    detail = " · ".join(_shown(*one) for one in facts.items())
    yield indent + node.name, _ms(node.measured_s) if node.measured_s else "", predicted, bar, detail
    for child in () if node.children is UNSET else node.children:
        yield from _lines(child, whole_s, indent + "  ")


def _seconds(node: ExplainNode) -> float:
    predicted = 0.0 if node.predicted_s is UNSET else node.predicted_s
    return node.measured_s or predicted


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.2f} ms"


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name.replace("_", " ") if value else f"not {name.replace('_', ' ')}"
    if name.endswith("_s") and isinstance(value, float):
        return f"{name.removesuffix('_s').replace('_', ' ')} {_ms(value)}"
    return (
        f"{name.replace('_', ' ')} {value:,}"
        if isinstance(value, int)
        else f"{name.replace('_', ' ')} {value}"
    )
