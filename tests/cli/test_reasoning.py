"""`headrace run` and its chat with a model that reasons: reasoning is no part of the answer."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.chat.templates.chat_template import ChatTemplate
from headrace.cli import answer_printer
from headrace.cli.answer_printer import AnswerPrinter
from headrace.cli.chat import ChatHistory
from headrace.cli.run import _report, _stream
from headrace.cli.statistics import StatisticsReader
from headrace.config.settings import Settings
from headrace.inference.completion import CompletionChunk
from headrace.llm import LLM

TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n{# </think> #}"
ASKED: dict[str, Any] = {"max_tokens": 24, "seed": 3, "thinking_token_budget": 5}


@pytest.fixture
def llm() -> Any:
    with LLM("novelette", threads=1) as loaded:
        loaded.model = replace(loaded.model, template=ChatTemplate(TEMPLATE))
        yield loaded


def test_run_prints_the_answer_without_its_reasoning(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    whole = llm.chat([{"role": "user", "content": "The sea"}], **ASKED)
    assert whole.reasoning and whole.text
    printer = AnswerPrinter()
    chunks = list(_stream(llm, "The sea", ASKED, raw=False, system=None))
    for chunk in chunks:
        printer.print(chunk)
    printer.end()
    assert printer.text == whole.text
    assert capsys.readouterr().out == whole.text.removesuffix("\n") + "\n"
    completion = chunks[-1].completion
    assert completion is not None
    statistics = StatisticsReader(llm, Settings(threads=1), shown=None).read(completion)
    report = json.loads(json.dumps(_report(llm, completion, statistics, None)))
    assert (report["text"], report["reasoning"]) == (whole.text, whole.reasoning)


def test_a_terminal_shows_reasoning_dimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(answer_printer.sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    printer = AnswerPrinter()
    for chunk in (
        CompletionChunk("", reasoning="hm "),
        CompletionChunk("", reasoning="so"),
        CompletionChunk("yes"),
    ):
        printer.print(chunk)
    printer.end()
    assert terminal.getvalue() == "\x1b[2mhm so\x1b[0m\nyes\n" and printer.text == "yes"


def test_the_history_of_a_chat_has_no_reasoning(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace.cli.chat import _answer

    history = ChatHistory(llm, ASKED, None)
    completion = _answer(history, "The sea")
    assert completion is not None and completion.reasoning
    assert [message["role"] for message in history.messages] == ["user", "assistant"]
    assert history.messages[1]["content"] == completion.text == capsys.readouterr().out.rstrip("\n")
