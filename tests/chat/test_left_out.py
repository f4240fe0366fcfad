"""System messages that a chat template does not show are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.chat.messages import Message, left_out
from headrace.chat.templates.chat_template import ChatTemplate, load_template
from headrace.errors import TemplateError
from headrace.weights.hub.bundled import list_bundled

SYSTEM = "You are Xavier.\n\n  Answer in <b>two</b> words & no more: \"yes\" or 'no'."
TALK = [Message("system", SYSTEM), Message("user", "Hello")]


@pytest.mark.parametrize(
    ("messages", "prompt", "found"),
    [
        (TALK, f"<s>{SYSTEM}</s>Hello", []),
        (TALK, f"<s>{' '.join(SYSTEM.split())}Hello", []),
        (TALK, "<s>Hello", [0]),
        ([*TALK, Message("developer", "Be brief.")], f"{SYSTEM} Hello", [2]),
        ([Message("system", " \n"), *TALK[1:]], "Hello", []),
        (TALK[1:], "", []),
    ],
)
def test_what_is_left_out(messages: list[Message], prompt: str, found: list[int]) -> None:
    assert left_out(messages, prompt) == found


def test_real_templates_show_it_or_refuse_it(shared_data: Path) -> None:
    shown = 0
    for file in sorted((shared_data / "chat_templates" / "jinja").glob("*.jinja")):
        template = ChatTemplate(file.read_text(), bos_token="<s>", eos_token="</s>")
        try:
            prompt = template.render(TALK)
        except TemplateError:
            continue
        assert left_out(TALK, prompt) == [], file.name
        shown += 1
    assert shown > 50


@pytest.mark.parametrize("name", ["mini", "nano"])
def test_bundled_models_never_read_it(name: str) -> None:
    template = load_template(list_bundled()[name])
    assert template is not None
    alone = template.render(TALK[1:])
    assert template.render([*TALK, Message("system", "Be brief.")]) == alone
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with_tools = template.render(TALK, tools=[tool])
    assert with_tools == template.render(TALK[1:], tools=[tool])
    assert left_out(TALK, with_tools) == [0]
