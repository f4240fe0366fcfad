"""The parts of the mixture: what they read and generate, and that held-out data stay held out."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.chat.messages import messages_from_openai
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.chat.tool_formats.hermes import HERMES
from headrace.chat.tool_formats.registry import tool_format_of

pytestmark = pytest.mark.usefixtures("recipes")
TRAIN = Path(__file__).resolve().parents[2] / "train"


@pytest.mark.parametrize(
    ("page", "clean"),
    [
        (
            "tar xf {{path/to/a.tar[.gz|.xz]}} {{[-C|--directory]}} {{folder}}",
            "tar xf path/to/a.tar.gz --directory folder",
        ),
        ("cargo {{[b|build]}}", "cargo build"),
        ("ssh {{[-p|-P|--port]}} {{22|2222}}", "ssh --port 22"),
        (r"echo \{\{x\}\}", "echo {{x}}"),
    ],
)
def test_commands_lose_the_markup_of_their_page(page: str, clean: str) -> None:
    assert importlib.import_module("data.shell").clean_command(page) == clean


def test_tasks_lose_the_markup_of_their_page() -> None:
    clean = importlib.import_module("data.shell").clean_task
    assert clean("e[x]tract a g[z]ipped `tar` archive") == "Extract a gzipped tar archive"


def test_held_out_wordings_do_not_occur_in_training() -> None:
    rephrase = importlib.import_module("data.rephrase")
    usual, held_out = rephrase.USUAL, rephrase.HELD_OUT
    assert not set(usual.frames + usual.named_frames) & set(held_out.frames + held_out.named_frames)
    for word, others in held_out.synonyms.items():
        assert not set(others) & {word, *usual.synonyms.get(word, ())}, word


def test_a_held_out_task_never_has_the_wording_of_its_page(made_up_data: Path) -> None:
    shell = importlib.import_module("data.shell").Shell(made_up_data)
    usual = importlib.import_module("data.rephrase").USUAL
    for example, conversation in shell.held_out(100, 1):
        question, answer = (message["content"] for message in conversation.messages)
        assert answer == example.command
        assert question.lower() != example.task.lower()
        assert not any(
            question.startswith(frame.partition("{")[0]) for frame in usual.frames if frame[0] != "{"
        )


def test_names_of_files_are_put_into_task_and_command_alike(made_up_data: Path) -> None:
    shell = importlib.import_module("data.shell").Shell(made_up_data)
    random = np.random.default_rng(0)
    drawn = [[message["content"] for message in shell.draw(random).messages] for _ in range(200)]
    filled = [(task, command) for task, command in drawn if " list " in command and "path/to" not in command]
    assert filled
    assert all(command.partition(" | ")[0].rpartition(" ")[2] in task for task, command in filled)


def test_everyday_tasks_match_their_commands() -> None:
    everyday = importlib.import_module("data.everyday").Everyday()
    random = np.random.default_rng(0)
    kept_back = [talk.messages[0]["content"] for talk in everyday.held_out()]
    drawn = [everyday.draw(random) for _ in range(3000)]
    asked = {talk.messages[0]["content"].rstrip("?.") for talk in drawn}
    assert len(kept_back) > 190 and not asked & set(kept_back)
    assert not any({"{", "}"} & set(question) for question in asked)
    for talk in drawn:
        question, command = (message["content"] for message in talk.messages)
        if command.startswith("kill ") and "-9" not in command:
            assert command.split()[1] in question.rstrip("?.").split()
    assert ("extract a gzipped tar archive", "tar -xzf path/to/file.tar.gz") in [
        tuple(message["content"] for message in talk.messages) for talk in everyday.held_out()
    ]


def test_sql_quotes_names_only_if_required_and_round_trips() -> None:
    sql, figures = importlib.import_module("data.sql"), importlib.import_module("figures")
    conditions = (("home/team", "=", "O'Brien AND co"), ("points", ">", "12.5"))
    question = sql.Question("?", ("home/team", "points", "order"), "COUNT", "order", conditions)
    statement = sql.statement(question, "games")
    assert statement == (
        """SELECT COUNT("order") FROM games WHERE "home/team" = 'O''Brien AND co' AND points > 12.5"""
    )
    assert figures.logical_form(statement) == figures.wanted_form(question)
    swapped = """SELECT COUNT("order") FROM games WHERE points > 12.5 AND "home/team" = 'o''brien and CO'"""
    assert figures.logical_form(swapped) == figures.wanted_form(question)
    assert figures.logical_form(statement.replace("12.5", "12")) != figures.wanted_form(question)
    assert figures.logical_form("SELECT nonsense") is None
    assert figures.runs(statement, "games", question.columns)
    for unknown in ("goals", '"goals"'):
        assert not figures.runs(statement.replace("points", unknown), "games", question.columns)
    assert not figures.runs(statement.replace("COUNT(", "COUNT(("), "games", question.columns)


def test_questions_of_a_split_are_about_its_tables(made_up_data: Path) -> None:
    sql = importlib.import_module("data.sql").Sql(made_up_data)
    assert {question.text for question, _ in sql.held_out(9, 0, split="test")} == {
        f"Which city has river number {at}?" for at in (11, 12, 13)
    }
    assert all({"city", "river"} <= {*question.columns} for question in sql.tests["dev"])


def test_a_text_is_repeated_with_one_word_changed(made_up_data: Path) -> None:
    edits = importlib.import_module("sources").read_sources(made_up_data).edits
    random = np.random.default_rng(0)
    changed = 0
    for _ in range(40):
        asked, answer = (str(message["content"]) for message in edits.draw(random).messages)
        order, _, text = asked.partition("\n")
        if found := re.search(r"(?:write|with|to|instead of) (\w+)(?: for (\w+))?", order):
            pairs = [(before, after) for before, after in zip(text.split(), answer.split(), strict=True)]
            different = {pair for pair in pairs if pair[0] != pair[1]}
            assert all(found[1] in "".join(pair) for pair in different)
            changed += bool(different)
        else:
            assert answer == text
    assert changed > 10


def test_speculation_counts_as_the_engine_does() -> None:
    accepted = importlib.import_module("figures").accepted_per_step
    assert accepted([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], 2) == (4, 2)
    assert accepted([1, 2, 3], [9, 9, 9], 4) == (0, 3)
    assert accepted([1, 2, 3], [1, 9, 3], 4) == (2, 2)


def test_command_names() -> None:
    name = importlib.import_module("figures").command_name
    assert [name(line) for line in ("sudo apt update", "A=1 B=x make all", "ls")] == ["apt", "make", "ls"]


def test_a_dialogue_is_rendered_as_by_headrace(made_up_data: Path) -> None:
    dialogue = importlib.import_module("dialogue")
    tools = importlib.import_module("data.tool_calls").ToolCalls()
    source = dialogue.TEMPLATE_PATH.read_text()
    assert tool_format_of(source) is HERMES
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    tokenizer = dialogue.make_tokenizer(["some text " * 9], 300)
    writer = dialogue.Writer(tokenizer)
    for at in range(50):
        talk = tools.draw(np.random.default_rng(at))
        spelled = [_spelled(message) for message in talk.messages]
        theirs = template.render(
            messages_from_openai(spelled), tools=list(talk.tools), add_generation_prompt=False
        )
        assert writer.text(talk) == theirs


def test_the_assistants_turns_are_trained_on_with_their_ends() -> None:
    dialogue = importlib.import_module("dialogue")
    tokenizer = dialogue.make_tokenizer(["some text " * 9], 300)
    writer = dialogue.Writer(tokenizer)
    first = {"role": "user", "content": "a"}
    second = {"role": "assistant", "content": "<tool_call>b</tool_call>"}
    talk = dialogue.Conversation((first, second, first, {"role": "assistant", "content": "c"}))
    tokens = writer.tokens(talk)
    learned = tokenizer.decode(tokens.ids[tokens.learned].tolist(), skip_special_tokens=False)
    assert learned == "<tool_call>b</tool_call></s>c</s>"
    # The markers of a call stay in decoded text, those of turns are removed.
    assert tokenizer.decode(tokens.ids.tolist()) == "a<tool_call>b</tool_call>ac"
    prompt = writer.prompt_ids(dialogue.up_to_turn(talk, 0))
    assert tokenizer.decode(prompt, skip_special_tokens=False) == "<s><|user|>a</s><|assistant|>"


def test_texts_of_one_window_do_not_attend_to_each_other() -> None:
    torch = importlib.import_module("torch")
    sees = importlib.import_module("loop").sees(torch.tensor([[0, 0, 1, 1]]))[0, 0]
    assert sees.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def test_a_missing_package_is_named() -> None:
    script = (
        "import sys, importlib.util; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'matplotlib' else find(name)\n"
        f"sys.path.insert(0, {str(TRAIN)!r}); import packages"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: the recipes need matplotlib: pip install 'headrace[train]'\n"


def _spelled(message: dict[str, object]) -> dict[str, object]:
    """As a client would send it: a call has an id, and its arguments are JSON text."""
    if message["role"] == "tool":
        return message | {"tool_call_id": "1"}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    spelled = [
        {
            "id": "1",
            "type": "function",
            "function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])},
        }
        for call in calls
    ]
    return message | {"tool_calls": spelled, "content": None}
