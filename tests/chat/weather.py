"""Helpers: a tool as OpenAI's clients declare it."""

from __future__ import annotations

from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a town",
            "parameters": {
                "type": "object",
                "properties": {"town": {"type": "string", "description": "Which"}},
                "required": ["town"],
            },
        },
    }
]
