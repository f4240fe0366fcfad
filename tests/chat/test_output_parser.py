"""Parsing does not depend on how text is split; templates determine the tool call format."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import read
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.chat.messages import Message, ToolCall
from headrace.chat.output_parser import output_syntax
from headrace.chat.prompt import prepare
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.chat.tool_formats.registry import FAMILIES, tool_format_of
from headrace.chat.tools import Tool, ToolUse
from headrace.errors import InvalidRequest

TOOL = Tool("f", "", {"type": "object", "properties": {"a": {"type": "string"}}})
SNIPPETS = ["f", "(a='x')", '{"name": "f", "arguments": {"a": "x"}}', *'[]{}" \n', "to=functions.f"]


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=40)
@given(data=st.data(), cut=st.booleans())
def test_parsing_does_not_depend_on_how_text_is_split(name: str, data: st.DataObject, cut: bool) -> None:
    syntax = output_syntax("<think></think>", name)
    parts = st.sampled_from([*syntax.marks, *SNIPPETS]) | st.text(max_size=3)
    text = "".join(data.draw(st.lists(parts, max_size=10)))
    use = ToolUse(callable=(TOOL,))
    whole = read(syntax, use, [text], cut=cut)
    assert read(syntax, use, text, cut=cut) == whole
    at = data.draw(st.integers(0, len(text)))
    assert read(syntax, use, [text[:at], text[at:]], cut=cut) == whole


def test_plain_text_changes_only_at_its_ends() -> None:
    text = "a <b> [c] {d} | e"
    for name in FAMILIES:
        assert read(output_syntax("", name), ToolUse(callable=(TOOL,)), text).content == text


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("MiMo-VL", "hermes"),
        ("StepFun3.5-Flash", "qwen3_coder"),
        ("GLM-5.2", "glm"),
        ("Kimi-K2-Thinking", "kimi_k2"),
        ("mistralrs__mistral_small_tool_call", "mistral"),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "mistral_args"),
        ("ibm-granite-granite-3.3-2B-Instruct", "granite"),
        ("meta-llama-Llama-3.2-3B-Instruct", "llama3"),
        ("LFM2-8B-A1B", "lfm2"),
        ("google-gemma-2-2b-it", None),
        ("microsoft-Phi-3.5-mini-instruct", None),
    ],
)
def test_a_template_determines_its_family(shared_data: Path, name: str, family: str | None) -> None:
    source = (shared_data / "chat_templates" / "jinja" / f"{name}.jinja").read_text()
    found = tool_format_of(source)
    assert (found.name if found else None) == family


def test_a_template_without_tools_refuses_them(shared_data: Path) -> None:
    source = (shared_data / "chat_templates" / "jinja" / "google-gemma-2-2b-it.jinja").read_text()
    with pytest.raises(InvalidRequest, match="does not know tools") as caught:
        prepare(ChatTemplate(source), [Message("user", "x")], use=ToolUse((TOOL,), (TOOL,)))
    assert caught.value.param == "tools"


def test_ids_are_converted_for_mistrals_template(shared_data: Path) -> None:
    name = "mistralai-Mistral-Nemo-Instruct-2407.jinja"
    source = (shared_data / "chat_templates" / "jinja" / name).read_text()
    called = Message("assistant", None, tool_calls=(ToolCall("call_0123456789", "f", "{}"),))
    messages = [Message("user", "x"), called, Message("tool", "5", tool_call_id="call_0123456789")]
    text = prepare(ChatTemplate(source), messages, use=ToolUse((TOOL,), (TOOL,))).text
    [given_id] = {piece[:9] for mark in ('"id": "', '"call_id": "') for piece in text.split(mark)[1:]}
    assert given_id.isalnum()
