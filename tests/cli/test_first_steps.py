"""What a person meets in the first hour: near names, help, pipes, a full chat, no network."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from invocation import Headrace, Outcome
from test_commands import COMMANDS, PROMPT, Terminal

from headrace import __main__
from headrace.cli.prompt_input import whole_prompt
from headrace.cli.terminal import print_table, warn
from headrace.errors import UsageError
from headrace.inference.events import ParameterWarning


@pytest.mark.parametrize("command", COMMANDS)
def test_a_short_flag_shows_the_help(command: str, inside: Callable[..., Outcome]) -> None:
    assert inside(command, "-h").stdout == inside(command, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "error: unknown command 'rnu': did you mean 'run'? (see headrace --help)"),
        (
            ["bench", "serv"],
            "error: unknown command 'serv': did you mean 'serve'? (see headrace bench --help)",
        ),
        (
            ["run", "--temprature", "1", "x"],
            "error: unknown option --temprature: did you mean '--temperature'? (see headrace run --help)",
        ),
        (
            ["run", "--max-tokens", "many", "x"],
            "error: invalid value for '--max-tokens': it must be a valid integer (see headrace run --help)",
        ),
        (["rm"], "error: MODEL is missing (see headrace rm --help)"),
        (["keys", "foo"], "error: invalid value for 'ACTION': 'foo' is not one of 'add', 'list', 'rm' (see "),
        (["run", "minni"], "error: no model 'minni' is on this machine: did you mean 'mini'? (to ask mini"),
        (["run", "llama3.2"], "models of the hub are OWNER/NAME, such as Qwen/Qwen3-0.6B (to ask mini"),
        (["run", "qwen3:0.6b"], "models of the hub are OWNER/NAME"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_near_names_in_one_line(inside: Callable[..., Outcome], arguments: list[str], message: str) -> None:
    result = inside(*arguments)
    assert result.code == 2
    [line] = result.stderr.splitlines()
    assert message in line and line.startswith("error: ")


def test_a_misspelled_model_is_suggested(inside: Callable[..., Outcome]) -> None:
    result = inside("run", "novelete", "Once")
    assert result.code == 1 and "did you mean 'novelette'" in result.stderr


def test_the_first_suggestion_answers(inside: Callable[..., Outcome]) -> None:
    assert 'headrace run "extract a gzipped tar archive"' in inside("--help").stdout
    answer = inside("run", "extract a gzipped tar archive", "--temperature", "0").stdout
    assert answer.startswith("tar ") and answer.count("\n") == 1


def test_a_system_message_that_the_template_leaves_out_is_named(
    inside: Callable[..., Outcome], environment: dict[str, str]
) -> None:
    flags = ("--temperature", "0", "--system", "You are a helpful assistant.")
    answered = inside("run", "extract a gzipped tar archive", *flags)
    assert answered.stdout.startswith("tar ")
    assert answered.stderr.startswith("warning: the system message has no effect: mini's chat template")
    [warning] = json.loads(inside("run", "list all files", *flags, "--json").stdout)["warnings"]
    assert warning["param"] == "messages[0]"
    terminal = Terminal(environment, "run", *flags)
    terminal.say(b"list all files\r", b"warning: the system message has no effect")
    terminal.say(b"show the date\r", b"tokens/s")
    terminal.expect(PROMPT)
    terminal.send(b"\x04")
    assert terminal.close() == 0


def test_a_warning_is_told_once_in_a_chat(capsys: pytest.CaptureFixture[str]) -> None:
    shown: set[str] = set()
    for _ in range(2):
        warn([ParameterWarning("messages[0]", "it has no effect")], shown)
    assert capsys.readouterr().err == "warning: it has no effect\n"


@pytest.mark.parametrize(
    ("prompt", "piped", "whole"),
    [
        ("Summarize:", "a letter\n", "Summarize:\n\na letter\n"),
        ("Summarize:", "", "Summarize:"),
        ("-", "a letter\n", "a letter\n"),
        (None, "a letter\n", "a letter\n"),
        ("", "", ""),
    ],
)
def test_piped_text_is_appended(
    monkeypatch: pytest.MonkeyPatch, prompt: str | None, piped: str, whole: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(piped))
    assert whole_prompt(prompt) == whole


def test_a_closed_stdin_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert whole_prompt("Hello") == "Hello"
    with pytest.raises(UsageError, match="no prompt"):
        whole_prompt(None)


def test_piped_bytes_that_are_no_text(headrace: Headrace) -> None:
    result = headrace("run", "Summarize:", stdin=b"\xff\xfe", PYTHONIOENCODING="utf-8:strict")
    assert result.returncode == 2 and b"stdin is not UTF-8 text" in result.stderr


def test_a_list_is_whole_in_a_pipe(
    inside: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "…" not in inside("list").stdout
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    print_table([("mini", "word " * 20)], fit=True)
    print_table([("mini", "word " * 20)])
    cut, whole = terminal.getvalue().splitlines()
    assert len(cut) <= 40 and cut.endswith(" …") and len(whole) > 100


def test_an_unreachable_hub_fails_the_doctor(headrace: Headrace) -> None:
    nowhere = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:1", "no_proxy": "*"}
    result = headrace("doctor", "--online", **nowhere)
    assert result.returncode == 1
    assert b"broken: hub: " in result.stdout and b"HF_ENDPOINT" in result.stdout
    assert result.stderr == b"", "it tries once"
    assert headrace("doctor").returncode == 0


def test_a_full_chat_names_the_way_out(environment: dict[str, str]) -> None:
    terminal = Terminal(environment, "run", "--max-model-len", "40", "--temperature", "0", "--ignore-eos")
    terminal.expect(b"/help for help")
    terminal.say(b"list all files\r", b"is full, which ended the answer: /reset forgets it")
    terminal.say(b"show " + b"the date " * 20 + b"\r", b"does not fit the context")
    terminal.expect(b"/reset forgets it")
    terminal.say(b"/clear\r", b"is forgotten")
    terminal.expect(PROMPT)
    terminal.send(b"/bye\r")
    assert terminal.close() == 0


@pytest.mark.parametrize(("asked", "possible"), [(100, "up to 1,024"), (None, None)])
def test_advice_stays_within_the_models_own_context(
    inside: Callable[..., Outcome], asked: int | None, possible: str | None
) -> None:
    flags = [] if asked is None else ["--max-model-len", str(asked)]
    message = inside("run", "x", "--max-tokens", "5000", *flags).stderr
    assert "shorten it or lower max_tokens" in message
    assert ("--max-model-len" in message) == (possible is not None)
    assert possible is None or possible in message


@pytest.mark.parametrize(("line", "word", "expected"), [("m", "mini", True), ("--top", "--top-k", True)])
def test_words_complete(headrace: Headrace, line: str, word: str, expected: bool, tmp_path: Path) -> None:
    found = headrace(COMP_WORDS=f"headrace run {line}", COMP_CWORD="2", _HEADRACE_COMPLETE="complete_bash")
    assert (word in found.stdout.decode().split()) == expected, found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(inside: Callable[..., Outcome], shell: str) -> None:
    assert "_HEADRACE_COMPLETE" in inside("completion", shell).stdout


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no POSIX permissions here")
def test_a_history_that_cannot_be_kept_does_not_stop_a_chat(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("")
    terminal = Terminal(environment | {"XDG_STATE_HOME": str(tmp_path / "state")}, "run", "--max-tokens", "4")
    terminal.expect(b"is not kept for the next time")
    terminal.say(b"Hello\r", b"tokens/s")
    terminal.expect(PROMPT)
    terminal.send(b"\x04")
    assert terminal.close() == 0


def test_ctrl_c_while_modules_are_loaded_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    with pytest.raises(SystemExit) as stop:
        __main__.main()
    assert stop.value.code == 130


def test_an_answer_that_fills_the_context_says_so(headrace: Headrace) -> None:
    result = headrace("run", "list all files", "--ignore-eos", "--max-model-len", "40")
    assert result.stderr == b"the answer ended where the context of 40 tokens is full\n"
