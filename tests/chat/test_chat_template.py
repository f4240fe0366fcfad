"""Templates of real models, and the additions to plain Jinja."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from weather import TOOLS

from headrace.chat.messages import Message, ToolCall, messages_from_openai
from headrace.chat.templates.chat_template import ChatTemplate, load_template, missing_template
from headrace.errors import CorruptFile, InvalidRequest, TemplateError

CHAT_ML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [Message("user", "Hello"), Message("assistant", "Hi there"), Message("user", "Who are you?")]
OWN_REASONS = {
    # What each of the real templates needs besides a plain conversation, or its own error.
    "CohereForAI-c4ai-command-r-plus-tool_use.jinja": "NoneType",
    "MiroThinker.jinja": "cannot assign attribute on non-namespace object",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja": "NoneType",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja": "NoneType",
    "mistralrs__nousresearch_hermes2_pro_tool_use.jinja": "NoneType",
    "mistralrs__nousresearch_hermes3_tool_use.jinja": "NoneType",
}


def render(source: str, messages: list[Message] | None = None, **arguments: Any) -> str:
    return ChatTemplate(source).render(TALK if messages is None else messages, **arguments)


def test_expected_renderings(shared_data: Path) -> None:
    """33 templates with Jinja's output (or the reason why it refuses)."""
    file = json.loads((shared_data / "chat_templates" / "llamacpp_expected_outputs.json").read_text())
    messages = messages_from_openai(file["conversation"])
    assert len(file["cases"]) == 33
    for case in file["cases"]:
        template = ChatTemplate(
            case["template_str"], bos_token=case.get("bos_token"), eos_token=case.get("eos_token")
        )
        expected = case.get("jinja2_output", case["expected_output_jinja"] or case["expected_output"])
        if expected.startswith("ERR "):
            reason = expected.split("(", 1)[1].strip("()'\"")
            with pytest.raises(TemplateError) as caught:
                template.render(messages, add_generation_prompt=file["add_generation_prompt"])
            assert reason in caught.value.message, case["name"]
        else:
            text = template.render(messages, add_generation_prompt=file["add_generation_prompt"])
            assert text in (expected, case["expected_output"]), case["name"]


NOW = datetime(2026, 3, 1)


@pytest.fixture(scope="module")
def real_templates(shared_data: Path) -> dict[str, ChatTemplate]:
    """Every real template, compiled once."""
    return {
        file.name: ChatTemplate(file.read_text(), bos_token="<s>", eos_token="</s>", now=lambda: NOW)
        for file in sorted((shared_data / "chat_templates" / "jinja").glob("*.jinja"))
    }


def test_real_templates_render_a_plain_conversation(real_templates: dict[str, ChatTemplate]) -> None:
    assert len(real_templates) == 62
    for name, template in real_templates.items():
        if name in OWN_REASONS:
            with pytest.raises(TemplateError, match=OWN_REASONS[name]):
                template.render(TALK)
        else:
            text = template.render(TALK)
            assert all(message.content in text for message in TALK if message.content), name


def plain_jinja() -> ImmutableSandboxedEnvironment:
    """The environment that checkpoints' templates are written for, without our checks."""
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def to_json(value: object, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    def refuse(message: str) -> None:
        raise ValueError(message)

    plain.filters["tojson"] = to_json
    plain.globals.update(strftime_now=NOW.strftime, raise_exception=refuse)
    return plain


def test_real_templates_equal_plain_jinja(real_templates: dict[str, ChatTemplate]) -> None:
    """The checks change nothing: the text equals plain Jinja's, also with tools, calls and reasoning."""
    plain = plain_jinja()
    call = ToolCall("call00001", "weather", '{"town": "Köln", "days": 2}')
    with_tools = [
        Message("system", "Be brief."),
        Message("user", "Weather in Köln?"),
        Message("assistant", "", tool_calls=(call,), reasoning="They want weather."),
        Message("tool", '{"sky": "gray"}', name="weather", tool_call_id="call00001"),
        Message("assistant", "Grey.", reasoning="Read it off."),
        Message("user", "Thanks <b>&"),
    ]
    compared = 0
    for name, template in real_templates.items():
        reference = plain.from_string(template.source)
        for messages, tools in ((TALK, None), (with_tools, TOOLS)):
            inputs = {
                "messages": template.in_its_form(messages, tools=tools),
                "tools": tools,
                "add_generation_prompt": True,
            }
            if "firefunction" in name:
                functions = json.dumps(tools, indent=4, ensure_ascii=False) if tools else ""
                inputs |= {"functions": functions, "datetime": NOW.strftime("%b %d %Y")}
            try:
                date = NOW.strftime("%d %b %Y")
                expected = reference.render(**inputs, bos_token="<s>", eos_token="</s>", date_string=date)
            except Exception:
                with pytest.raises(TemplateError):
                    template.render(messages, tools=tools)
                continue
            assert template.render(messages, tools=tools) == expected, name
            compared += 1
    assert compared > 90


def test_raise_exception_is_a_template_error() -> None:
    with pytest.raises(TemplateError, match=r"only users may speak.*line 2 of the template") as caught:
        render("{% for m in messages %}\n{{ raise_exception('only users may speak') }}{% endfor %}")
    assert (caught.value.status, caught.value.code) == (400, "template_error")


def test_errors_name_the_line() -> None:
    with pytest.raises(TemplateError, match="line 3: UndefinedError"):
        render("a\nb\n{{ nothing.at.all }}")
    with pytest.raises(TemplateError, match="line 2"):
        render("a\n{% if %}")


def test_tojson_escapes_no_html() -> None:
    value = {"b": "<&>'ü", "a": [1, None, True]}
    assert render("{{ x | tojson }}", variables={"x": value}) == json.dumps(value, ensure_ascii=False)
    assert render("{{ x | tojson(indent=2) }}", variables={"x": value}) == json.dumps(
        value, ensure_ascii=False, indent=2
    )
    assert render(
        "{{ x | tojson(sort_keys=true, ensure_ascii=true) }}", variables={"x": value}
    ) == json.dumps(value, sort_keys=True)


def test_blocks_loop_controls_and_generation_marks() -> None:
    source = (
        "{% for m in messages %}\n    {% if loop.index == 2 %}\n{% continue %}{% endif %}"
        "{% generation %}{{ m.content }};{% endgeneration %}\n{% if loop.index == 3 %}{% break %}{% endif %}"
        "{% endfor %}"
    )
    assert render(source) == "Hello;Who are you?;"


def test_the_date_comes_from_the_given_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 3, 1))
    assert template.render(TALK) == "01 Mar 2026"


def test_a_captured_block_may_fill_a_namespace() -> None:
    source = "{% set ns = namespace() %}{% set ns.a %}x{{ messages[0].content }}{% endset %}{{ ns.a }}"
    assert render(source) == "xHello"
    assert render("{% set a | upper %}x{% endset %}{{ a }}") == "X"


def test_the_date_is_todays_unless_given() -> None:
    clock = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", now=lambda: NOW)
    fixed = ChatTemplate(
        "{% if not date_string is defined %}{% set date_string = 'July' %}{% endif %}{{ date_string }}",
        now=lambda: NOW,
    )
    assert "date_string" in clock.reads & fixed.reads
    assert (clock.render(TALK), fixed.render(TALK)) == ("2026-03-01", "01 Mar 2026")
    for text in ("2025-12-24", "24 Dec 2025", "24 December 2025", "December 24, 2025"):
        given = {"date_string": text}
        assert clock.render(TALK, variables=given) == "2025-12-24"
        assert fixed.render(TALK, variables=given) == text
    with pytest.raises(TemplateError, match=r"date_string is 'soon', which is not a date"):
        clock.render(TALK, variables={"date_string": "soon"})


def test_the_date_of_firefunction() -> None:
    template = ChatTemplate("{{ datetime }}", now=lambda: datetime(2026, 3, 1))
    assert template.render([]) == "Mar 01 2026"
    assert template.render([], variables={"datetime": "then"}) == "then"


def test_the_tools_of_firefunction() -> None:
    template = ChatTemplate("{{ '<' + functions + '>' + datetime }}", now=lambda: datetime(2026, 3, 1))
    assert "tools" in template.reads
    assert template.render([]) == "<>Mar 01 2026"
    tools, _, date = template.render([], tools=[{"name": "run"}]).rpartition(">")
    assert (json.loads(tools[1:]), date) == ([{"name": "run"}], "Mar 01 2026")
    assert template.render([], variables={"functions": "mine"}) == "<mine>Mar 01 2026"
    other = ChatTemplate("{% if functions is defined %}{{ functions }}{% endif %}")
    assert "tools" not in other.reads and other.render([], tools=[{"name": "run"}]) == ""


def test_special_tokens() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ pad_token }}{{ additional_special_tokens[0] }}{{ eos_token }}",
        bos_token="<s>",
        special_tokens={"pad_token": "<p>", "additional_special_tokens": ["<a>"]},
    )
    assert template.render(TALK) == "<s><p><a>"


def test_tools_and_their_own_template() -> None:
    template = ChatTemplate("plain", tool_source="{% for t in tools %}{{ t.function.name }}{% endfor %}")
    assert template.render(TALK) == template.render(TALK, tools=[]) == "plain"
    assert template.render(TALK, tools=TOOLS) == "weather"
    assert "tools" in template.reads


def test_variables_reach_the_template() -> None:
    template = ChatTemplate("{% if enable_thinking %}{{ own_name[0] }}{% endif %}")
    assert template.render(TALK, variables={"enable_thinking": True, "own_name": [5]}) == "5"
    assert template.reads == {"enable_thinking", "own_name"}


@pytest.mark.parametrize(
    "name", ["messages", "tools", "bos_token", "range", "namespace", "_x", "a b", "#budget", "loop", ""]
)
def test_variables_may_not_hide_names(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(CHAT_ML, variables={name: 1})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize("value", [print, {1, 2}, b"x", object()])
def test_variables_are_json(value: object) -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        render(CHAT_ML, variables={"x": value})


def test_continue_the_final_message() -> None:
    messages = [Message("user", "Hello"), Message("assistant", "Well, I  ")]
    text = render(CHAT_ML, messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nWell, I  "
    trimming = CHAT_ML.replace("message.content", "message.content | trim")
    text = render(trimming, messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("assistant\nWell, I")


def test_continuing_needs_something_to_continue() -> None:
    with pytest.raises(InvalidRequest, match="exclude each other"):
        render(CHAT_ML, continue_final_message=True)
    silent = [Message("assistant", None, tool_calls=(ToolCall("1", "f", "{}"),))]
    with pytest.raises(InvalidRequest, match="last message"):
        render(CHAT_ML, silent, add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(TemplateError, match="does not show"):
        render("fixed", add_generation_prompt=False, continue_final_message=True)


def test_developer_becomes_system_where_the_template_does_not_know_it() -> None:
    message = [Message("developer", "Be brief.")]
    assert render("{{ messages[0].role }}", message) == "system"
    assert render("{# developer #}{{ messages[0].role }}", message) == "developer"


def test_a_long_conversation_stays_within_the_limits() -> None:
    """A thousand messages of 400 characters, appended to a list one by one."""
    messages = [Message("user" if i % 2 == 0 else "assistant", f"{i} " + "word " * 80) for i in range(1000)]
    source = (
        "{% set ns = namespace(a=[]) %}{% for m in messages %}{% set ns.a = ns.a + [m] %}{% endfor %}"
        "{% macro show(all, i) %}{{ all[i].content | trim }}\n{% endmacro %}"
        "{% for m in ns.a %}{{ show(messages, loop.index0) }}{% endfor %}"
    )
    assert render(source, messages).count("\n") == 1000


def test_incrementally_built_output_stays_within_the_limits() -> None:
    """The intermediate texts total 450 MB, with only a few of them in use at any time."""
    messages = [Message("user", "word " * 180) for _ in range(1000)]
    source = (
        "{% set ns = namespace(o='') %}{% for m in messages %}{% set ns.o = ns.o ~ m.content %}{% endfor %}"
        "{{ ns.o }}"
    )
    assert render(source, messages) == "word " * 180_000


def test_a_long_text_counts_once() -> None:
    source = "{% for i in range(2000) %}{% set x = messages[0].content | trim %}{% endfor %}ok"
    assert render(source, [Message("user", "w" * 900_000)]) == "ok"


class TestLoading:
    def config(self, folder: Path, **entries: object) -> None:
        (folder / "tokenizer_config.json").write_text(json.dumps(entries))

    def test_none(self, tmp_path: Path) -> None:
        assert load_template(tmp_path) is None
        self.config(tmp_path, chat_template=None)
        assert load_template(tmp_path) is None
        error = missing_template("tiny")
        assert error.code == "template_missing"
        assert "--raw" in error.message
        assert "chat_template.jinja" in error.message

    def test_string(self, tmp_path: Path) -> None:
        self.config(
            tmp_path,
            chat_template="{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ additional_special_tokens }}",
            bos_token="<s>",
            eos_token={"content": "</s>"},
            pad_token=None,
            additional_special_tokens=["<a>", {"content": "<b>"}],
        )
        template = load_template(tmp_path)
        assert template is not None
        assert template.render(TALK) == "<s></s>['<a>', '<b>']"

    def test_named(self, tmp_path: Path) -> None:
        named = [{"name": "tool_use", "template": "with tools"}, {"name": "default", "template": "plain"}]
        self.config(tmp_path, chat_template=named)
        template = load_template(tmp_path)
        assert template is not None
        assert (template.render(TALK), template.render(TALK, tools=TOOLS)) == ("plain", "with tools")

    def test_files_win_over_the_config(self, tmp_path: Path) -> None:
        self.config(tmp_path, chat_template="config", bos_token="<s>")
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
        assert load_template(tmp_path).render(TALK) == "json"  # type: ignore[union-attr]
        (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}jinja")
        assert load_template(tmp_path).render(TALK) == "<s>jinja"  # type: ignore[union-attr]
        more = tmp_path / "additional_chat_templates"
        more.mkdir()
        (more / "tool_use.jinja").write_text("tools")
        assert load_template(tmp_path).render(TALK, tools=TOOLS) == "tools"  # type: ignore[union-attr]

    @pytest.mark.parametrize("entry", [5, {"a": 1}, [1], [{"name": "x"}], [{"template": "x"}]])
    def test_nonsense(self, tmp_path: Path, entry: object) -> None:
        self.config(tmp_path, chat_template=entry)
        with pytest.raises(CorruptFile, match="chat_template"):
            load_template(tmp_path)

    def test_invalid_utf_8(self, tmp_path: Path) -> None:
        (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
        with pytest.raises(CorruptFile, match="UTF-8"):
            load_template(tmp_path)

    def test_real_configs(self, shared_data: Path) -> None:
        for name in ("qwen2.5", "qwen3"):
            template = load_template(shared_data / "tokenizers" / "hf" / name)
            assert template is not None
            assert template.render(TALK).endswith("<|im_start|>assistant\n")
