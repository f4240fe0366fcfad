"""Bodies of tasks that cost far more than they weigh: findings, recognizers and texts without end."""

from __future__ import annotations

import json
from typing import Any

from target import Attack, Target, request

SPACES = 200_000
RESULTS = 20_000


def _posted(path: str, status: int, **fields: Any):
    body = json.dumps(fields).encode()

    def run(target: Target) -> str:
        message = request(path.encode(), method=b"POST", key="attacker", body=body)
        seen = target.at_once(2, lambda: target.status(message))
        assert set(seen) == {status}, seen
        return f"{len(seen)} × {status}"

    return run


def _findings(start: int, step: int) -> list[dict[str, Any]]:
    ends = range(SPACES, SPACES - RESULTS * step, -step)
    return [{"start": start, "end": end, "entity_type": "A"} for end in ends]


def _recognizers(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"supported_entity": f"E{index}", **fields} for index in range(count)]


_PATTERN = {"regex": "(a{0,100}){0,8}x", "score": 0.5}
_WORDS = [f"word{index}" for index in range(1000)]

ATTACKS = [
    Attack(
        "findings over blanks",
        _posted("/anonymize", 200, text=" " * SPACES, analyzer_results=_findings(0, 1)),
    ),
    Attack(
        "long replacements",
        _posted(
            "/anonymize",
            400,
            text="a" * SPACES,
            analyzer_results=[
                {"start": place, "end": place + 1, "entity_type": "A"} for place in range(0, RESULTS, 2)
            ],
            anonymizers={"DEFAULT": {"type": "replace", "new_value": "x" * 100_000}},
        ),
    ),
    Attack(
        "catastrophic recognizers",
        _posted(
            "/analyze",
            400,
            text="a" * 1000,
            language="en",
            ad_hoc_recognizers=_recognizers(32, patterns=[_PATTERN] * 32),
        ),
    ),
    Attack(
        "lists of words of context",
        _posted(
            "/analyze",
            400,
            text="a@b.co " * 10_000,
            language="en",
            ad_hoc_recognizers=_recognizers(
                32, patterns=[{"regex": "a@b", "score": 0.1}], context=_WORDS[:100]
            ),
        ),
    ),
    Attack("a text without end", _posted("/v1/redact", 400, input="hello " * 1_000_000), memory_mib=96),
    Attack("values without end", _posted("/v1/redact", 400, input=["a"] * 600_000), memory_mib=96),
]
