"""The grammar of each family accepts what its parser reads, and rejects calls that violate a tool's
schema.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from answers import parsed, read
from test_tool_formats import WRITTEN, gemma

from headrace.chat.output_parser import ToolGrammar, output_grammar, output_syntax
from headrace.chat.tool_formats.registry import FAMILIES
from headrace.chat.tools import Tool, ToolUse
from headrace.grammar.json_schema import SchemaRefused

llguidance = pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"town": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
    "required": ["town", "days"],
    "additionalProperties": False,
}
TOOLS = (Tool("weather", "", SCHEMA), Tool("time", "", {"type": "object", "properties": {}}))
GOOD: list[tuple[str, dict[str, Any]]] = [("weather", {"town": "Kö\n{n", "days": 2, "unit": "C"})]
BAD: list[tuple[str, dict[str, Any]]] = [("weather", {"town": "x", "days": "two"})]


def envelope(key: str, made: Any) -> str:
    return ", ".join(json.dumps({"name": name, key: args}, ensure_ascii=False) for name, args in made)


def parameters(made: Any) -> str:
    [(name, args)] = made
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in args.items())
    return f"<function={name}>\n{inner}</function>"


def glm(made: Any) -> str:
    [(name, args)] = made
    pairs = (f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in args.items())
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def dumped(made: Any) -> str:
    return json.dumps(made[0][1], ensure_ascii=False)


def in_json(made: Any) -> str:
    [(name, args)] = made
    values = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in args.items())
    return f"[{name}({', '.join(values)})]"


QUOTE = '<|"|>'
SPELLED = {
    "hermes": lambda made: f"<tool_call>\n{envelope('arguments', made)}\n</tool_call>",
    "llama3": lambda made: envelope("parameters", made),
    "granite": lambda made: f"<|tool_call|>[{envelope('arguments', made)}]",
    "mistral": lambda made: f"[TOOL_CALLS][{envelope('arguments', made)}]",
    "mistral_args": lambda made: f"[TOOL_CALLS]{made[0][0]}[ARGS]{dumped(made)}",
    "qwen3_coder": lambda made: f"<tool_call>\n{parameters(made)}\n</tool_call>",
    "seed_oss": lambda made: f"<seed:tool_call>\n{parameters(made)}\n</seed:tool_call>",
    "glm": glm,
    "deepseek_v3": lambda made: (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{made[0][0]}\n```json\n{dumped(made)}"
        "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": lambda made: (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{made[0][0]}<｜tool▁sep｜>{dumped(made)}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi_k2": lambda made: (
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{made[0][0]}:0<|tool_call_argument_begin|>"
        f"{dumped(made)}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "gemma4": lambda made: f"<|tool_call>call:{made[0][0]}{gemma(QUOTE)(made[0][1])}<tool_call|>",
    "functiongemma": WRITTEN["functiongemma"],
    "llama4_pythonic": in_json,
    "lfm2": lambda made: f"<|tool_call_start|>{in_json(made)}<|tool_call_end|>",
    "gpt_oss": lambda made: (
        f"<|channel|>commentary to=functions.{made[0][0]} <|constrain|>json<|message|>{dumped(made)}"
    ),
}
BARE = {"llama3", "llama4_pythonic"}


@pytest.fixture(scope="module")
def byte_tokenizer() -> Any:
    """One token per byte; the last is the end of the sequence."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"<eos>"]

    class Bytes:
        eos_token_id = 256
        bos_token_id = None
        special_token_ids = (256,)

        def __init__(self) -> None:
            self.tokens = tokens

        def __call__(self, text: bytes | str) -> list[int]:
            return list(text.encode() if isinstance(text, str) else text)

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def takes(tokenizer: Any, grammar: ToolGrammar, text: str) -> bool:
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar.text))
    assert not matcher.is_error(), matcher.get_error() + "\n" + grammar.text
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


def no_special(mark: str) -> int | None:
    return None


def auto_grammar(name: str) -> ToolGrammar:
    return output_grammar(
        output_syntax("", name), ToolUse(TOOLS, TOOLS), no_special, starts_in_reasoning=False
    )


def test_every_family_is_covered() -> None:
    assert set(SPELLED) == set(FAMILIES)


@pytest.mark.parametrize("name", SPELLED)
def test_a_required_call(byte_tokenizer: Any, name: str) -> None:
    syntax = output_syntax("", name)
    use = ToolUse(TOOLS, TOOLS, mode="required")
    grammar = output_grammar(syntax, use, no_special, starts_in_reasoning=False)
    good = SPELLED[name](GOOD)
    assert parsed(read(syntax, use, [good])) == GOOD
    assert takes(byte_tokenizer, grammar, good)
    assert not takes(byte_tokenizer, grammar, SPELLED[name](BAD))
    assert not takes(byte_tokenizer, grammar, SPELLED[name]([("weather", {"days": 2})]))
    assert not takes(byte_tokenizer, grammar, SPELLED[name]([("other", {"town": "x", "days": 2})]))
    assert not takes(byte_tokenizer, grammar, "No.")


@pytest.mark.parametrize("name", SPELLED)
def test_free_text_with_calls(byte_tokenizer: Any, name: str) -> None:
    """Nothing demands a call, but one that has begun matches its tool's schema."""
    grammar = auto_grammar(name)
    before = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant" if name == "gpt_oss" else "Well. "
    before = "" if name in BARE else before
    plain = "<|channel|>final<|message|>No." if name == "gpt_oss" else "No."
    assert takes(byte_tokenizer, grammar, plain)
    assert takes(byte_tokenizer, grammar, before + SPELLED[name](GOOD))
    for wrong in (BAD, [("weather", {"days": 2})], [("weather", {"town": "x", "days": 2, "more": 1})]):
        assert not takes(byte_tokenizer, grammar, before + SPELLED[name](wrong)), wrong


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("llama3", ['{"answer": 1}', '{"name": "Bo"}', "[1]", "{", ""]),
        ("llama4_pythonic", ["[1, 2]", "[wea", "x(1)"]),
    ],
)
def test_text_that_only_looks_like_a_call_without_a_marker(
    byte_tokenizer: Any, name: str, texts: list[str]
) -> None:
    for text in texts:
        assert takes(byte_tokenizer, auto_grammar(name), text), text


def test_every_opening_marker_is_held_to_the_schema(byte_tokenizer: Any) -> None:
    """Granite's parser reads two markers: neither may be followed by anything else than calls."""
    for mark in ("<|tool_call|>", "<tool_call>"):
        assert takes(byte_tokenizer, auto_grammar("granite"), f"{mark}[{envelope('arguments', GOOD)}]")
        assert not takes(byte_tokenizer, auto_grammar("granite"), f"{mark}[{envelope('arguments', BAD)}]")


REFUSED = {"type": "object", "properties": {"a": {"not": {"pattern": "x"}}, "b": {"type": "integer"}}}


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("name", SPELLED)
def test_a_schema_that_cannot_be_enforced_is_named_and_leaves_its_arguments_free(
    byte_tokenizer: Any, name: str, mode: Literal["auto", "required"]
) -> None:
    """The same verdict whether a call is demanded or not."""
    tools = (TOOLS[0], Tool("odd", "", REFUSED))
    grammar = output_grammar(
        output_syntax("", name), ToolUse(tools, tools, mode), no_special, starts_in_reasoning=False
    )
    assert [w for w in grammar.warnings if "'odd'" in w and "'pattern'" in w and "any arguments" in w]
    assert takes(byte_tokenizer, grammar, SPELLED[name]([("odd", {"town": "x", "days": 2})]))
    assert takes(byte_tokenizer, grammar, SPELLED[name](GOOD))
    assert not takes(byte_tokenizer, grammar, SPELLED[name](BAD))
    strict = (Tool("odd", "", REFUSED, strict=True),)
    with pytest.raises(SchemaRefused, match="'pattern'"):
        output_grammar(
            output_syntax("", name), ToolUse(strict, strict, mode), no_special, starts_in_reasoning=False
        )


def test_what_of_a_schema_is_not_enforced_or_added_is_said() -> None:
    open_ended = {
        "type": "object",
        "properties": {"a": {"type": "integer", "x-order": 1, "tsType": "number"}},
        "anyOf": [{"required": ["a"]}, True],
    }
    tools = (Tool("f", "", open_ended),)
    use = ToolUse(tools, tools)
    for name, more in (("hermes", []), ("glm", ["anyOf of all arguments together cannot be enforced"])):
        grammar = output_grammar(
            output_syntax("", name),
            use,
            no_special,
            starts_in_reasoning=False,
            disable_additional_properties=True,
        )
        wanted = [
            *more,
            "not part of what is enforced: x-order, tsType",
            "objects that list properties get no",
        ]
        assert len(grammar.warnings) == len(wanted)
        for text, part in zip(grammar.warnings, wanted, strict=True):
            assert part in text


def test_properties_that_are_not_listed(byte_tokenizer: Any) -> None:
    call = SPELLED["hermes"]([("f", {"a": 1, "b": 2})])
    for schema, closes, fits in (
        ({"properties": {"a": {}}}, True, False),
        ({"properties": {"a": {}}}, False, True),
        ({"properties": {"a": {}}, "additionalProperties": True}, True, True),
        ({}, True, True),
    ):
        tools = (Tool("f", "", {"type": "object", **schema}),)
        grammar = output_grammar(
            output_syntax("", "hermes"),
            ToolUse(tools, tools),
            no_special,
            starts_in_reasoning=False,
            disable_additional_properties=closes,
        )
        assert takes(byte_tokenizer, grammar, call) == fits, (schema, closes)


def test_reasoning_before_a_required_call(byte_tokenizer: Any) -> None:
    syntax = output_syntax("<think></think><tool_call>")
    use = ToolUse(TOOLS, TOOLS, mode="required")
    call = SPELLED["hermes"](GOOD)
    for starts_in_reasoning, answers in (
        (False, [call, f"<think>hm</think>\n\n{call}"]),
        (True, [f"hm</think>\n{call}"]),
    ):
        grammar = output_grammar(syntax, use, no_special, starts_in_reasoning=starts_in_reasoning)
        for answer in answers:
            assert takes(byte_tokenizer, grammar, answer), answer
            assert parsed(read(syntax, use, answer, starts_in_reasoning=starts_in_reasoning)) == GOOD


def test_one_call_without_parallel_tool_calls(byte_tokenizer: Any) -> None:
    for name in ("hermes", "mistral", "deepseek_v3", "llama3"):
        use = ToolUse(TOOLS, TOOLS, mode="required", parallel=False)
        grammar = output_grammar(output_syntax("", name), use, no_special, starts_in_reasoning=False)
        several = output_grammar(
            output_syntax("", name), ToolUse(TOOLS, TOOLS, "required"), no_special, starts_in_reasoning=False
        )
        twice = SPELLED[name](GOOD * 2) if name in ("mistral", "llama3") else ""
        if twice:
            twice = twice.replace("}, {", "}; {") if name == "llama3" else twice
            assert takes(byte_tokenizer, several, twice)
            assert not takes(byte_tokenizer, grammar, twice)
