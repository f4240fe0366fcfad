"""Chat in a real browser against a real server whose model says what a script has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake import FakeTemplate
from in_process import Running

pytestmark = pytest.mark.xdist_group("browser")

MARKDOWN = """Here is a **script**:

```python
import os  # comment
print("hello", 42)
```

| a | b |
|---|---|
| 1 | 2 |
"""


def test_an_answer_streams_and_is_shown_as_markdown(scripted: Callable[..., Running], visit) -> None:
    site = visit(scripted(MARKDOWN).url)
    page = site.open()
    answer = site.ask("Show me a script")
    assert answer.locator("strong").inner_text() == "script"
    code = answer.locator("pre code")
    assert code.inner_text().strip() == 'import os  # comment\nprint("hello", 42)'
    assert code.locator(".k").first.inner_text() == "import"
    assert code.locator(".s").inner_text() == '"hello"'
    assert answer.locator("td").all_inner_texts() == ["1", "2"]
    facts = answer.get_by_role("list", name="Figures").inner_text()
    assert f"{len(MARKDOWN)} out" in facts and "tokens/s" in facts and "first after" in facts
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer.get_by_role("button", name="Copy", exact=True).first.click()
    answer.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == code.text_content()


def test_stop_keeps_what_has_come(scripted: Callable[..., Running], visit) -> None:
    server = scripted("word " * 400, pause_s=0.02)
    site = visit(server.url)
    page = site.open()
    box = page.get_by_label("Message", exact=True)
    box.fill("Go on")
    box.press("Enter")
    page.locator("article.assistant", has_text="word word").wait_for()
    page.keyboard.press("Escape")
    site.done()
    answer = page.locator("article.assistant")
    assert "stopped by you" in answer.inner_text()
    assert 0 < answer.locator(".prose").inner_text().count("word") < 400
    assert server.model.engine.cancelled_event.wait(10)


def test_regenerate_and_edit_make_branches(scripted: Callable[..., Running], visit) -> None:
    server = scripted("first")
    site = visit(server.url)
    page = site.open()
    site.ask("Question one")
    server.model.engine.answer = "second"
    page.get_by_role("button", name="Regenerate").click()
    page.locator("article.assistant", has_text="second").wait_for()
    site.done()
    versions = page.locator("article.assistant").get_by_role("group", name="Versions")
    assert versions.inner_text().split() == ["2", "/", "of", "2"]
    versions.get_by_role("button", name="Previous version").click()
    page.locator("article.assistant", has_text="first").wait_for()
    page.get_by_role("button", name="Edit").click()
    editor = page.get_by_label("Edit your message")
    assert editor.input_value() == "Question one"
    server.model.engine.answer = "third"
    editor.fill("Question two")
    page.get_by_role("button", name="Send", exact=True).first.click()
    page.locator("article.assistant", has_text="third").wait_for()
    site.done()
    asked = page.locator("article.user").get_by_role("group", name="Versions")
    assert asked.inner_text().split() == ["2", "/", "of", "2"]
    asked.get_by_role("button", name="Previous version").click()
    page.get_by_text("Question one").wait_for()
    page.locator("article.assistant", has_text="first").wait_for()


def test_conversations_are_kept_exported_and_imported(
    scripted: Callable[..., Running], visit, tmp_path: Path
) -> None:
    site = visit(scripted("an answer").url)
    page = site.open()
    site.ask("Remember this")
    page.get_by_role("button", name="New chat").click()
    site.ask("And that")
    page.reload()
    kept = page.get_by_role("navigation", name="Conversations")
    kept.get_by_role("button", name="Remember this", exact=True).click()
    page.locator("article.assistant", has_text="an answer").wait_for()
    with page.expect_download() as download:
        kept.get_by_role("button", name="Export").click()
    file = tmp_path / "conversations.json"
    download.value.save_as(file)
    exported = json.loads(file.read_text())["headrace_conversations"]
    assert {one["title"] for one in exported} == {"Remember this", "And that"}
    kept.get_by_role("button", name="Delete all conversations").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    kept.get_by_role("button", name="Remember this", exact=True).wait_for(state="detached")
    page.locator("input[type=file][accept]").set_input_files(file)
    kept.get_by_text("2 conversations imported.").wait_for()
    kept.get_by_role("button", name="And that", exact=True).click()
    page.locator("article.user", has_text="And that").wait_for()
    bad = tmp_path / "bad.json"
    bad.write_text('{"headrace_conversations": [{"nodes": {"a": {"role": "evil"}}}]}')
    page.locator("input[type=file][accept]").set_input_files(bad)
    assert "Conversation 1" in kept.get_by_role("alert").inner_text()


def test_what_is_sent_is_what_was_chosen(scripted: Callable[..., Running], visit, tmp_path: Path) -> None:
    server = scripted('{"city": "Paris"}')
    site = visit(server.url)
    page = site.open()
    sent: list[dict[str, object]] = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.post_data else None)
    page.get_by_role("button", name="Options").click()
    options = page.get_by_role("complementary", name="Options of this chat")
    options.get_by_label("System prompt").fill("Be brief.")
    options.get_by_label("Temperature").fill("0.3")
    options.get_by_label("Max tokens").fill("50")
    options.get_by_label("Answer as", exact=True).select_option("schema")
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    options.get_by_label("JSON schema").fill(json.dumps(schema))
    notes = tmp_path / "notes.txt"
    notes.write_text("```\nnot the end of the fence\n```")
    binary = tmp_path / "binary.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    page.locator("form.composer input[type=file]").set_input_files([notes, binary])
    assert "binary.bin is not a text file" in page.get_by_role("alert").inner_text()
    answer = site.ask("Which city?")
    assert '"city": "Paris"' in answer.locator("pre").inner_text()
    (body,) = sent
    assert (body["temperature"], body["max_tokens"]) == (0.3, 50)
    assert body["response_format"]["json_schema"]["schema"] == schema  # type: ignore[index]
    system, user = body["messages"]  # type: ignore[misc]
    assert system == {"role": "system", "content": "Be brief."}
    assert 'File "notes.txt":\n````\n```\nnot the end' in user["content"]


def test_calls_of_tools_are_cards_that_take_results(scripted: Callable[..., Running], visit) -> None:
    server = scripted('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>')
    server.model.template = FakeTemplate("tools <tool_call>")
    site = visit(server.url)
    page = site.open()
    page.get_by_role("button", name="Options").click()
    tools = [
        {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    ]
    page.get_by_label("Tools").fill(json.dumps(tools))
    answer = site.ask("Weather in Oslo?")
    card = answer.get_by_role("region", name="Call of weather")
    assert '"city": "Oslo"' in card.inner_text()
    server.model.engine.answer = "It is sunny."
    card.get_by_label("Result").fill("sunny, 21 degrees")
    answer.get_by_role("button", name="Send the results").click()
    page.locator("article.assistant", has_text="It is sunny.").wait_for()
    assert "sunny, 21 degrees" in page.locator("article.tool").inner_text()
    site.done()


def test_reasoning_is_folded(scripted: Callable[..., Running], visit) -> None:
    server = scripted("Let me think.</think>The answer.")
    server.model.template = FakeTemplate("<think> </think>")
    server.model.template.tail = "<think>\n"
    site = visit(server.url)
    site.open()
    answer = site.ask("Why?")
    assert answer.locator("details.reasoning summary").inner_text() == "Reasoning"
    assert not answer.get_by_text("Let me think.").is_visible()
    assert answer.get_by_text("The answer.").is_visible()
    answer.locator("details.reasoning summary").click()
    assert answer.get_by_text("Let me think.").is_visible()


def test_a_key_is_asked_for_and_kept_for_the_session_only(scripted: Callable[..., Running], visit) -> None:
    server = scripted("welcome", api_key="secret")
    site = visit(server.url)
    page = site.open()
    site.use_key("wrong")
    page.get_by_role("dialog", name="API key").wait_for()
    site.use_key("secret")
    page.get_by_role("option", name="fake/model").wait_for(state="attached")
    assert site.ask("Hello").locator("p").inner_text() == "welcome"
    assert page.evaluate("Object.values(sessionStorage)") == ["secret"]
    kept = page.evaluate("[JSON.stringify(localStorage), document.cookie]")
    assert not any("secret" in text for text in kept)


def test_errors_are_told_in_the_words_of_the_server(scripted: Callable[..., Running], visit) -> None:
    server = scripted("x")
    site = visit(server.url)
    page = site.open()
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Max tokens").fill("100000")
    box = page.get_by_label("Message", exact=True)
    box.fill("Hello")
    box.press("Enter")
    page.get_by_role("alert").get_by_text("the limit is 4,096").wait_for()
    page.get_by_label("Tools").fill("{not json")
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("alert").get_by_text("Tools is not valid JSON").wait_for()


def test_two_models_answer_side_by_side(visit, scripted: Callable[..., Running]) -> None:
    server = scripted("the same words")
    site = visit(server.url)
    page = site.open()
    sent: list[dict[str, object]] = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.post_data else None)
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Compare with").select_option("fake/model")
    site.ask("Who is better?")
    pair = page.get_by_role("group", name="Answers of two models")
    assert pair.locator("article.assistant .prose").all_inner_texts() == ["the same words"] * 2
    first, second = sent
    assert second["model"] == "fake/model" and first["messages"] == second["messages"]
    server.model.engine.answer = "one of them went on"
    pair.get_by_role("button", name="Go on with this one").click()
    page.get_by_label("Compare with").select_option("")
    site.ask("And then?")
    page.locator("article.assistant", has_text="one of them went on").wait_for()
    said = [message["content"] for message in sent[-1]["messages"]]  # type: ignore[attr-defined]
    assert len(sent) == 3 and said == ["Who is better?", "the same words", "And then?"]
    page.reload()
    page.locator(".conversations .title").first.click()
    pair.locator("article.assistant").nth(1).wait_for()  # both are kept


def test_what_is_typed_in_the_options_stays_while_an_answer_grows(
    scripted: Callable[..., Running], visit
) -> None:
    site = visit(scripted("word " * 300, pause_s=0.02).url)
    page = site.open()
    page.get_by_role("button", name="Options").click()
    box = page.get_by_label("Message", exact=True)
    box.fill("Go on")
    box.press("Enter")
    page.locator("article.assistant", has_text="word").wait_for()
    prompt = page.get_by_label("System prompt")
    prompt.press_sequentially("Be brief.", delay=30)
    assert prompt.input_value() == "Be brief."
    page.keyboard.press("Escape")
    site.done()
