"""The tool loop through templates that render only some forms of messages right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from weather import TOOLS

from headrace.chat.messages import messages_from_openai
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.errors import InvalidRequest, TemplateError

ARGUMENTS = '{"town": "Xtown"}'
IMPOSSIBLE = {
    # They raise with calls in any form, and say why; plain Jinja raises as well.
    "Kimi-K2-Instruct.jinja": "'append' of 'list' is not for templates",
    "Kimi-K2-Thinking.jinja": "'append' of 'list' is not for templates",
    "MiroThinker.jinja": "'tool' is undefined",
    "google-gemma-2-2b-it.jinja": "roles must alternate",
    "llama-cpp-deepseek-r1.jinja": "not JSON serializable",
    "mistralrs__gemma3n.jinja": "roles must alternate",
}
HIDES = {
    # They never show calls that are in `tool_calls`.
    *("HuggingFaceTB-SmolLM3-3B.jinja", "mistralrs__smollm3.jinja"),
    *("LFM2-8B-A1B.jinja", "LFM2.5-Instruct.jinja", "ibm-granite-granite-3.3-2B-Instruct.jinja"),
    *("llama-cpp-rwkv-world.jinja", "microsoft-Phi-3.5-mini-instruct.jinja"),
}
LOOP = """{% for m in messages %}{{ m.role }}: CONTENT
{% for c in m.tool_calls or [] %}<tool_call>CALL</tool_call>{% endfor %}{% endfor %}"""
QUIRKS = {
    "prints_none": (LOOP, "m.content", "c.function.arguments | tojson"),
    "needs_content": (LOOP, "m.content | trim if 'x' in m.content else ''", "c.function.arguments"),
    "joins_arguments": (LOOP, "m.content or ''", "'' + c.function.arguments"),
    "encodes_strings": (LOOP, "m['content'][0]['text']", "c.function.arguments | tojson"),
    "wants_absence": (
        LOOP,
        "(raise_exception('both') if m.content is defined and m.tool_calls else m.content or '')",
        "c.function.arguments | tojson",
    ),
}


def looped(template: ChatTemplate, **assistant: Any) -> str:
    """The prompt after a call and its result, as clients send them back."""
    call = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    messages = [
        {"role": "user", "content": "Xask"},
        {"role": "assistant", "tool_calls": [call], **assistant},
        {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": "Xgray"},
    ]
    return template.render(messages_from_openai(messages), tools=TOOLS)


@pytest.mark.parametrize("assistant", [{"content": None}, {}, {"content": ""}])
def test_real_templates(shared_data: Path, assistant: dict[str, Any]) -> None:
    files = sorted((shared_data / "chat_templates" / "jinja").glob("*.jinja"))
    assert len(files) == 62
    for file in files:
        template = ChatTemplate(file.read_text(), bos_token="<s>", eos_token="</s>")
        if file.name in IMPOSSIBLE:
            with pytest.raises(TemplateError, match=IMPOSSIBLE[file.name]):
                looped(template, **assistant)
            continue
        text = looped(template, **assistant)
        assert "None" not in text, file.name
        assert '\\"town' not in text, file.name
        assert file.name in HIDES or ("Xtown" in text and "Xgray" in text), file.name


@pytest.mark.parametrize("name", QUIRKS)
@pytest.mark.parametrize("assistant", [{"content": None}, {}, {"content": ""}])
def test_quirks(name: str, assistant: dict[str, Any]) -> None:
    source, content, call = QUIRKS[name]
    template = ChatTemplate(
        source.replace("CONTENT", "{{ " + content + " }}").replace("CALL", "{{ " + call + " }}")
    )
    text = looped(template, **assistant)
    assert "None" not in text
    assert ("Xtown" in text and "Xgray" in text) or name == "needs_content"
    assert "\\" not in text


def test_a_refusal_stays_a_clear_error() -> None:
    with pytest.raises(TemplateError, match="no calls here"):
        looped(
            ChatTemplate(
                "{% for m in messages if m.tool_calls %}{{ raise_exception('no calls here') }}{% endfor %}"
            )
        )


def test_calls_without_content_cannot_be_continued() -> None:
    source, content, call = QUIRKS["wants_absence"]
    filled = source.replace("CONTENT", "{{ " + content + " }}").replace("CALL", "{{ " + call + " }}")
    calls = [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}]
    messages = messages_from_openai([{"role": "assistant", "content": None, "tool_calls": calls}])
    with pytest.raises(InvalidRequest, match="needs a last message with text"):
        ChatTemplate(filled).render(messages, add_generation_prompt=False, continue_final_message=True)
