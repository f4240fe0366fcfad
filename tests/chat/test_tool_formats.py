"""Every family: a call printed by its template is parsed as that call, however the text is split."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from answers import parsed, read, tools_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.chat.messages import Message, ToolCall
from headrace.chat.output_parser import output_syntax
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.chat.tool_formats.registry import FAMILIES
from headrace.chat.tools import ToolUse

Call = tuple[str, dict[str, Any]]

MARKS = [*sorted({mark for family in FAMILIES.values() for mark in family.marks}), "</parameter>", '"}', "\n"]
texts = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(MARKS)), max_size=3).map("".join)
numbers = st.one_of(st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False, width=32))
scalars = st.one_of(texts, numbers, st.booleans(), st.none())
keys = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=6,
)
names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
calls = st.tuples(names, st.dictionaries(keys, values, max_size=3))


def gemma(quote: str) -> Callable[[Any], str]:
    def value(item: Any) -> str:
        if isinstance(item, str):
            return f"{quote}{item}{quote}"
        if isinstance(item, dict):
            return "{" + ",".join(f"{key}:{value(entry)}" for key, entry in item.items()) + "}"
        if isinstance(item, list):
            return "[" + ",".join(map(value, item)) + "]"
        return json.dumps(item)

    return value


def pythonic(made: list[Call]) -> str:
    inner = (f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in made)
    return f"[{', '.join(inner)}]"


def envelopes(made: list[Call]) -> str:
    return json.dumps([{"name": name, "arguments": arguments} for name, arguments in made])


# Families without a template in the shared data that prints calls.
WRITTEN: dict[str, Callable[[list[Call]], str]] = {
    "granite": lambda made: "<|tool_call|>" + envelopes(made),
    "functiongemma": lambda made: "".join(
        f"<start_function_call>call:{name}{gemma('<escape>')(arguments)}<end_function_call>"
        for name, arguments in made
    ),
    "llama4_pythonic": pythonic,
    "lfm2": lambda made: f"<|tool_call_start|>{pythonic(made)}<|tool_call_end|>",
}
# Real templates; those with one call per answer are marked.
PRINTED = {
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "ByteDance-Seed-OSS": "seed_oss",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "mistralrs__deepseek_tool_call": "deepseek_v3",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31",
    "moonshotai-Kimi-K2": "kimi_k2",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral_args",
    "unsloth-mistral-Devstral-Small-2507": "mistral_args",
    "google-gemma-4-31B-it": "gemma4",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "openai-gpt-oss-120b": "gpt_oss",
}
ONE_CALL = {"llama3", "gpt_oss"}
NO_ESCAPES = {"qwen3_coder", "seed_oss", "glm", "functiongemma", "gemma4"}
ENDS = (
    "<|im_end|>",
    "</s>",
    "<|eot_id|>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "<seed:eos>",
)


def strings_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, entry in value.items() for text in (key, *strings_of(entry))]
    if isinstance(value, list):
        return [text for entry in value for text in strings_of(entry)]
    return [value] if isinstance(value, str) else []


def expressible(name: str, made: list[Call]) -> bool:
    """True if the format can express these values: without escapes, not every string."""
    if name not in NO_ESCAPES:
        return True
    marks = [mark for mark in (*FAMILIES[name].marks, "</parameter>") if len(mark) > 1]
    return not any(
        mark in text for text in strings_of([arguments for _, arguments in made]) for mark in marks
    )


def check(name: str, answer: str, made: list[Call], cuts: list[int]) -> None:
    use = ToolUse(callable=tools_for(made))
    syntax = output_syntax("", name)
    whole = read(syntax, use, [answer])
    assert parsed(whole) == made, (answer, whole)
    assert whole.content == ""
    assert read(syntax, use, answer) == whole
    places = sorted({cut % (len(answer) + 1) for cut in cuts})
    pieces = [answer[a:b] for a, b in zip([0, *places], [*places, len(answer)], strict=True)]
    assert read(syntax, use, pieces) == whole


cuts = st.lists(st.integers(0, 10**6), max_size=6)
fuzz = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", WRITTEN)
@fuzz
@given(made=st.lists(calls, min_size=1, max_size=3, unique_by=lambda call: call[0]), cuts=cuts)
def test_a_written_call_is_parsed(name: str, made: list[Call], cuts: list[int]) -> None:
    if expressible(name, made):
        check(name, WRITTEN[name](made), made, cuts)


@pytest.fixture(scope="module")
def templates(shared_data: Path) -> dict[str, ChatTemplate]:
    folder = shared_data / "chat_templates" / "jinja"
    return {name: ChatTemplate((folder / f"{name}.jinja").read_text(), eos_token="</s>") for name in PRINTED}


def printed(template: ChatTemplate, family: str, made: list[Call]) -> str:
    """What a template prints for the assistant's turn."""
    tools = [tool.for_template() for tool in tools_for(made)]
    told = [ToolCall(f"call{index:05}", name, json.dumps(args)) for index, (name, args) in enumerate(made)]
    ask = Message("user", "?")
    turns = [ask, Message("assistant", "", tool_calls=tuple(told))]
    before = template.render([ask], tools=tools, add_generation_prompt=False)
    after = template.render(turns, tools=tools, add_generation_prompt=False)
    # Only the calls, without what templates write at the start and end of the turn.
    start = next(
        (at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(before)
    )
    openings = (
        [*FAMILIES[family].marks[:1], '{"name": "'] if family == "llama3" else FAMILIES[family].marks[:1]
    )
    if family == "gpt_oss":
        openings = ["<|start|>assistant to="]
    begin = min(at for mark in openings if (at := after.find(mark, start)) >= 0)
    text = after[begin:].rstrip()
    for end in ENDS * 2:
        text = text.removesuffix(end).rstrip()
    return text


@pytest.mark.parametrize("template", PRINTED)
@fuzz
@given(made=st.lists(calls, min_size=1, max_size=2, unique_by=lambda call: call[0]), cuts=cuts)
def test_a_printed_call_is_parsed(
    templates: dict[str, ChatTemplate], template: str, made: list[Call], cuts: list[int]
) -> None:
    family = PRINTED[template]
    if not expressible(family, made):
        return
    made = made[:1] if family in ONE_CALL else made
    check(family, printed(templates[template], family, made), made, cuts)
