"""Draw docs/assets/speed.svg from bench/results/peers.md; with --check only compare.

One group of bars per engine: Headrace's speed divided by the engine's, on the machine of SECTION.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "peers.md"
CHART = ROOT / "docs" / "assets" / "speed.svg"
SECTION = "# On a Zen 3 without VNNI"
ENGINES = {  # row of the table -> label
    "A int4 / llama.cpp q4_0": "llama.cpp, Q4_0",
    "A int4 / ik_llama.cpp q4_0": "ik_llama.cpp, Q4_0",
    "A int4 / openvino int4": "OpenVINO GenAI, int4",
    "A int4 / onnxruntime-genai int4": "ONNX Runtime GenAI, int4",
    "A int8 / vllm w8a8": "vLLM, W8A8 (prompts only)",
}
FIGURES = {"prefill 512": "prompt", "decode, batch 1": "one answer", "decode, 16 at once": "16 answers"}
COLORS = ("#0f766e", "#2563eb", "#b45309")
LEFT, SCALE, BAR, GAP, TOP = 190, 150, 12, 14, 64

STYLE = """svg.hr{--hr-fg:#1f2328;--hr-soft:#656d76;--hr-line:#d0d7de;font:13px system-ui,sans-serif}
@media(prefers-color-scheme:dark){svg.hr{--hr-fg:#e6edf3;--hr-soft:#9198a1;--hr-line:#3d444d}}
.hr text{fill:var(--hr-fg)}.hr .s{fill:var(--hr-soft);font-size:12px}.hr .l{stroke:var(--hr-line)}
.hr .one{stroke:var(--hr-fg);stroke-dasharray:3 3}"""


def main() -> int:
    drawn = draw(read_ratios(RESULTS.read_text()))
    if CHART.exists() and CHART.read_text() == drawn:
        return 0
    if "--check" in sys.argv:
        print(
            "docs/assets/speed.svg is not that of bench/results/peers.md: run `python scripts/make_chart.py`"
        )
        return 1
    CHART.write_text(drawn)
    return 0


def read_ratios(text: str) -> dict[str, dict[str, float]]:
    """Engine's label → figure → ratio, from the first table of SECTION; a dash is left out."""
    section = text.partition(SECTION)[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line
    ]
    head = rows[0]
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row[0] in ENGINES and len(row) == len(head) and row[0] not in found:
            found[row[0]] = {}
            for figure in FIGURES:
                number = re.match(r"\**(\d+\.\d+)", row[head.index(figure)])
                if number:
                    found[row[0]][figure] = float(number.group(1))
    return {label: found[row] for row, label in ENGINES.items()}


def draw(ratios: dict[str, dict[str, float]]) -> str:
    """The chart as SVG text."""
    parts: list[str] = []
    y = TOP
    for engine, values in ratios.items():
        middle = y + len(values) * (BAR + 2) / 2 + 4
        parts.append(f'<text x="{LEFT - 10}" y="{middle:g}" text-anchor="end">{engine}</text>')
        for (figure, _), color in zip(FIGURES.items(), COLORS, strict=True):
            if figure in values:
                parts.append(_bar(y, values[figure], color))
                y += BAR + 2
        y += GAP
    axis = _axis(y)
    height = y + 24
    title = "Speed of Headrace divided by the speed of another engine, on the same two cores"
    return "\n".join([
        f'<svg class="hr" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" role="img"'
        f' aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<text x="0" y="16" font-weight="600">{title}</text>',
        *_legend(), *axis, *parts, "</svg>", "",
    ])  # fmt: skip


def _bar(y: float, value: float, color: str) -> str:
    width = value * SCALE
    label = LEFT + 6 + (SCALE if 0.8 < value < 1 else width)  # not across the line at 1
    return (
        f'<rect x="{LEFT}" y="{y}" width="{width:g}" height="{BAR}" rx="2" fill="{color}"/>'
        f'<text x="{label:g}" y="{y + BAR - 2}" class="s">{value:.2f}×</text>'
    )


def _legend() -> list[str]:
    parts: list[str] = []
    for index, (name, color) in enumerate(zip(FIGURES.values(), COLORS, strict=True)):
        x = LEFT + index * 120
        parts.append(f'<rect x="{x}" y="32" width="12" height="12" rx="2" fill="{color}"/>')
        parts.append(f'<text x="{x + 18}" y="42" class="s">{name}</text>')
    return parts


def _axis(bottom: float) -> list[str]:
    parts: list[str] = []
    for step in range(4):
        x = LEFT + step * SCALE
        kind = "one" if step == 1 else "l"
        parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{bottom}" class="{kind}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle" class="s">{step}×</text>')
    return parts


if __name__ == "__main__":
    sys.exit(main())
