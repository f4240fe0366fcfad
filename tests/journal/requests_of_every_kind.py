"""A request of every surface and feature."""

from __future__ import annotations

from typing import Any

STORY = [{"role": "user", "content": "Tell a long story about a fox, a hen and a river."}]
SCHEMA = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 4, "maxItems": 8}},
    "required": ["names"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def kinds(seed: int, tokens: int = 350) -> dict[str, tuple[str, dict[str, Any]]]:
    """A request of every surface and feature, with answers of about so many tokens."""
    long = {"max_tokens": tokens, "ignore_eos": True, "stream": True}
    chat = {"model": "mini", "messages": STORY, "seed": seed, **long}
    text = {"model": "mini", "prompt": "The river rose", "seed": seed, **long}
    return {
        "greedy": (CHAT, {**chat, "temperature": 0}),
        "warm": (CHAT, {**chat, "temperature": 0.9, "top_p": 0.95}),
        "mirostat": (TEXT, {**text, "mirostat": 2, "temperature": 0.8}),
        "penalties": (
            CHAT,
            {**chat, "repetition_penalty": 1.2, "dry_multiplier": 0.8, "presence_penalty": 0.5},
        ),
        "schema": (
            CHAT,
            {**chat, "ignore_eos": False, "max_tokens": 300, "response_format": {
                "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        ),
        "tools": (
            CHAT,
            {**chat, "ignore_eos": False, "max_tokens": 300, "tools": [TOOL], "tool_choice": "required"},
        ),
        "three": (CHAT, {**chat, "n": 3, "temperature": 1.0}),
        "beam": (TEXT, {**text, "use_beam_search": True, "n": 2, "temperature": 0, "stream": False}),
        "prompts": (TEXT, {**text, "prompt": ["One", "Two of them", "Three hens ran"], "temperature": 0.8}),
        "logprobs": (CHAT, {**chat, "logprobs": True, "top_logprobs": 2}),
        "message": (
            "/v1/messages",
            {"model": "mini", "messages": STORY, "max_tokens": tokens, "stream": True, "temperature": 0},
        ),
        "response": (
            "/v1/responses",
            {"model": "mini", "input": "Count up.", "stream": True, "seed": seed,
             "max_output_tokens": tokens},
        ),
        "background": (
            "/v1/responses",
            {"model": "mini", "input": "Sing.", "background": True, "stream": True, "seed": seed,
             "max_output_tokens": tokens},
        ),
        "ollama": (
            "/api/chat",
            {"model": "mini", "messages": STORY,
             "options": {"seed": seed, "num_predict": tokens, "temperature": 0.7}},
        ),
    }  # fmt: skip
