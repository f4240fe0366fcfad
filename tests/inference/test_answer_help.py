"""`mini` is helped by its template: SQL over the prompt's tables, a sentence for tasks it cannot do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace import LLM
from headrace.errors import CorruptFile, InvalidRequest
from headrace.grammar.sql_tables import tables_of_prompt
from headrace.loading.answer_help import CANNOT
from headrace.weights.ngram_classifier import PREFIX, buckets, read_ngram_classifier

TABLE = "Table cars (model, brand, year built)\nWhich cars are from Fiat?"
OUTSIDE = "Write a poem about the sea."


@pytest.fixture(scope="module")
def mini() -> Iterator[LLM]:
    with LLM("mini") as llm:
        yield llm


def said(llm: LLM, text: str, **more: object) -> str:
    return llm.chat([{"role": "user", "content": text}], temperature=0, max_tokens=80, **more).text  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        (TABLE, {"cars": ["model", "brand", "year built"]}),
        ("table a(b);\n\nTable c (d, e).\nHow many?", {"a": ["b"], "c": ["d", "e"]}),
        ("Table a (b)", {}),
        ("How many?\nTable a (b)\n", {}),
        ("Table a (b\nHow many?", {}),
        ("Table manners (for children) are hard to teach.\nDiscuss.", {}),
        ("Table " + "a" * 5000 + " (b)\nHow many?", {}),
        ("", {}),
    ],
)
def test_tables_are_read_at_the_beginning_only(text: str, tables: dict[str, list[str]]) -> None:
    assert tables_of_prompt(text) == tables


def test_sql_names_only_what_the_tables_have(mini: LLM) -> None:
    database = sqlite3.connect(":memory:")
    database.execute('CREATE TABLE cars (model, brand, "year built")')
    answer = mini.chat([{"role": "user", "content": TABLE}], temperature=0, max_tokens=80)
    database.execute(answer.text)
    assert not answer.warnings
    with pytest.raises(sqlite3.Error):
        database.execute(said(mini, TABLE, template_variables={"sql_of_tables": False}))


def test_tables_that_have_no_grammar_are_a_warning(mini: LLM) -> None:
    text = "Table a (b, B)\nHow many b?"
    answer = mini.chat([{"role": "user", "content": text}], temperature=0, max_tokens=20)
    assert any("held to the tables" in one.message for one in answer.warnings)


def test_a_task_outside_of_the_card_gets_one_sentence_and_a_warning(mini: LLM) -> None:
    answer = mini.chat([{"role": "user", "content": OUTSIDE}], max_tokens=200)
    assert answer.text == CANNOT
    assert answer.finish_reason == "stop"
    assert any("in_scope" in one.message for one in answer.warnings)
    assert said(mini, OUTSIDE, template_variables={"in_scope": False}) != CANNOT
    assert said(mini, "list all files") == "ls"
    again = [
        {"role": "user", "content": "list all files"},
        {"role": "assistant", "content": "ls"},
        {"role": "user", "content": OUTSIDE},
    ]
    assert mini.chat(again, temperature=0, max_tokens=20).text != CANNOT[:20]


def test_what_the_request_asks_for_goes_first(mini: LLM) -> None:
    assert said(mini, OUTSIDE, choice=["yes", "no"]) in ("yes", "no")
    weather = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
    }
    assert said(mini, OUTSIDE, tools=[weather]) != CANNOT
    with pytest.raises(InvalidRequest, match="in_scope is 'no'"):
        said(mini, OUTSIDE, template_variables={"in_scope": "no"})


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f", "parameters": {}}}]])
def test_a_system_message_changes_nothing_and_is_a_warning(mini: LLM, tools: object) -> None:
    messages = [{"role": "user", "content": "show disk usage of the folder src"}]
    system = {"role": "system", "content": "You are a pirate. Today is Monday."}
    alone, below = (
        mini.chat(one, tools=tools, temperature=0, max_tokens=40)  # pyright: ignore[reportArgumentType]
        for one in (messages, [system, *messages])
    )
    assert alone.text == below.text
    assert [(one.name, one.arguments) for one in alone.tool_calls] == [
        (one.name, one.arguments) for one in below.tool_calls
    ]
    assert any(one.param == "messages[0]" for one in below.warnings)


def test_a_classifier_of_words_reads_any_text_and_refuses_bad_files(tmp_path: Path) -> None:
    for text in ("", " ", "\ud800", "ß" * 100_000, "a " * 100_000):
        assert len(buckets(text, 64)) <= 64
    path = tmp_path / "a.safetensors"
    save_file({PREFIX + "a": np.ones(9, np.float16), PREFIX + "b": np.zeros(9, np.float16)}, path)
    scores = read_ngram_classifier(path).scores("hello")
    assert sum(scores.values()) == pytest.approx(1)
    assert scores["a"] > scores["b"]
    broken = {
        "one": {PREFIX + "a": np.ones(9, np.float16)},
        "lengths": {PREFIX + "a": np.ones(9, np.float16), PREFIX + "b": np.ones(8, np.float16)},
        "numbers": {PREFIX + "a": np.full(9, np.nan, np.float16), PREFIX + "b": np.ones(9, np.float16)},
    }
    for name, tensors in broken.items():
        save_file(tensors, tmp_path / name)
        with pytest.raises(CorruptFile):
            read_ngram_classifier(tmp_path / name)
