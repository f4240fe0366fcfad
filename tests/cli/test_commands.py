"""The command line from outside: bytes on stdout, messages on stderr, exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from invocation import Headrace, Outcome

from headrace.cli import server_call
from tiny import convertible_model

COMMANDS = (
    "run",
    "serve",
    "ps",
    "stop",
    "keys",
    "list",
    "show",
    "quantize",
    "entities",
    "embed",
    "rerank",
    "classify",
    "redact",
    "rm",
    "pull",
    "bench",
    "doctor",
    "completion",
)


def test_version_and_help_are_fast_to_load(environment: dict[str, str]) -> None:
    code = (
        "import sys; from headrace.cli.main import main\n"
        "try: main([sys.argv[1]])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "heavy = {'numpy', 'starlette', 'tokenizers', 'rich', 'prompt_toolkit', 'huggingface_hub'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    for flag, expected in (("--version", "headrace 0."), ("--help", "Show a model's properties")):
        result = subprocess.run(
            [sys.executable, "-c", code, flag], capture_output=True, text=True, env=environment, check=False
        )
        assert result.returncode == 0, result.stderr
        assert expected in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_text_has_an_example(command: str, inside: Callable[..., Outcome]) -> None:
    result = inside(command, "--help")
    assert result.code == 0
    assert re.search(r"Examples?:\n\s+headrace " + command, result.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "frobnicate"),
        (["run", "--frobnicate"], "--frobnicate"),
        (["run", "--max-tokens", "many", "x"], "--max-tokens"),
        (["run", "--quantization", "int3", "x"], "one of auto, keep, bf16, int8, int4"),
        (["run", "--raw", "--system", "be kind", "x"], "--system needs the chat template"),
        (["run"], "stdin is empty"),
        (["run", "--raw", "--logit-bias", "a=b", "x"], "ID=X"),
        (["run", "--raw", "--max-batch-tokens", "4", "x"], "max_batch_tokens is 4"),
        (["run", "--raw", "--temperature", "-1", "x"], "temperature is -1.0"),
        (["run", "--raw", "--stop", "", "x"], "stop takes up to 16 non-empty strings"),
        (["rm", "novelette"], "ships inside the package"),
        (["rm"], "MODEL is missing"),
        (["pull", "--offline", "a/b"], "offline is set"),
        ([], "Usage"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_2(inside: Callable[..., Outcome], arguments: list[str], message: str) -> None:
    result = inside(*arguments)
    assert result.code == 2, result
    assert message in result.stderr + result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "./nowhere", "x"], "nowhere"),
        (["run", "nobody/nothing", "x", "--offline"], "nobody/nothing"),
        (["run", "", "x"], "neither a shipped model nor org/name"),
        (["run", "--raw", "--max-tokens", "100000", "x"], "the limit is"),
        (["show", "./nowhere"], "nowhere"),
        (["rm", "nobody/nothing"], "nobody/nothing"),
    ],
    ids=" ".join,
)
def test_failure_is_exit_1_and_one_line(
    inside: Callable[..., Outcome], arguments: list[str], message: str
) -> None:
    result = inside(*arguments)
    assert result.code == 1, result
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_an_unknown_variable_is_exit_2(headrace: Headrace) -> None:
    result = headrace("doctor", HEADRACE_THREDS="2")
    assert result.returncode == 2
    assert b"did you mean 'HEADRACE_THREADS'?" in result.stderr


def test_an_unsupported_isa_is_exit_2(headrace: Headrace) -> None:
    result = headrace("run", "--raw", "x", HEADRACE_ISA="abacus")
    assert result.returncode == 2
    assert result.stderr.startswith(b"error: HEADRACE_ISA=abacus is not usable")


def test_the_documented_output_byte_for_byte(headrace: Headrace, shared_data: Path) -> None:
    folder = shared_data / "stories260K"
    result = headrace("run", str(folder / "hf"), "", "--raw", "--temperature", "0", "--max-tokens", "200")
    assert result.returncode == 0, result.stderr
    assert result.stdout == (folder / "expected_greedy_200.txt").read_bytes() + b"\n"
    assert result.stderr == b""


def test_a_prompt_from_stdin_and_json(headrace: Headrace, inside: Callable[..., Outcome]) -> None:
    arguments = ("--raw", "--seed", "5", "--max-tokens", "8")
    texts = {
        inside("run", *arguments, "The sea").stdout,
        inside("run", "mini", "The sea", *arguments).stdout,
        headrace("run", *arguments, "-", stdin=b"The sea").stdout.decode(),
        headrace("run", *arguments, stdin=b"The sea").stdout.decode(),
    }
    assert len(texts) == 1
    report = json.loads(inside("run", *arguments, "--json", "The sea").stdout)
    assert {report["text"].removesuffix("\n") + "\n"} == texts
    assert report["finish_reason"] == "length"
    assert report["usage"]["completion_tokens"] == 8
    assert report["statistics"]["tokens_per_s"] > 0
    assert report["seed"] == 5


def test_sampling_flags_take_effect(inside: Callable[..., Outcome]) -> None:
    result = inside(
        "run", "--raw", "--json", "--stop-token-ids", "7", "--logit-bias", "7=100", "--temperature", "0", "Hi"
    )
    report = json.loads(result.stdout)
    assert (report["finish_reason"], report["stop"]) == ("stop", 7)


def test_reports_as_json(headrace: Headrace, inside: Callable[..., Outcome]) -> None:
    about = {entry["name"]: entry["about"] for entry in json.loads(headrace("list", "--json").stdout)}
    assert about["mini"].startswith("A small chat model")
    assert about["nano"].startswith("The draft model")
    assert about["novelette"].startswith("A small story model")
    assert about["embed"].startswith("A small sentence encoder")
    shown = json.loads(inside("show", "--json").stdout)
    assert shown["architecture"] == "llama"
    assert shown["parameters"] == sum(entry["parameters"] for entry in shown["stored"])
    plan = shown["plan"]
    parts = ("weights_bytes", "kv_bytes", "state_bytes", "activation_bytes", "base_bytes")
    assert shown["speed"]["decode_tokens_per_s"] > 0 and shown["speed"]["limits"]["measured_at"]
    assert plan["total_bytes"] == sum(plan[part] for part in parts)
    findings = json.loads(inside("doctor", "--json").stdout)
    assert {"kernels", "threads", "read bandwidth", "free memory", "cache"} <= {f["name"] for f in findings}


def test_quantize_replaces_only_with_force(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    folder, out = convertible_model(tmp_path), tmp_path / "tiny.gguf"
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n")
    written = json.loads(inside("quantize", str(folder), str(out), "--quantization", "q8_0", "--json").stdout)
    assert {"attention", "mlp"} <= {line["kind"] for line in written["classes"]}
    assert json.loads(inside("show", str(out), "--json").stdout)["license"] == "cc0-1.0"
    refused = inside("quantize", str(folder), str(out), "--quantization", "q4_0")
    assert refused.code == 2 and "--force" in refused.stderr
    table = inside("quantize", str(folder), str(out), "--quantization", "q4_k", "--force").stdout
    assert re.search(r"attention +Q8_0 +8 ", table)  # rows of 32 are not whole blocks of q4_k
    wrong = inside("quantize", str(folder), str(tmp_path / "x.gguf"), "--quantization", "int4")
    assert wrong.code == 2 and "q4_k" in wrong.stderr


def test_bench_limits(inside: Callable[..., Outcome]) -> None:
    found = json.loads(inside("bench", "roofline", "--json").stdout)
    assert found[0]["threads"] == 1 and found[-1]["int8_per_s"] > 1e6
    assert inside("bench", "everything").code == 2


def test_plain_text_tables(inside: Callable[..., Outcome]) -> None:
    columns = inside("list").stdout.splitlines()[0].split()
    # Models of the hub, where another test has brought one, have a revision.
    assert [name for name in columns if name != "REVISION"] == ["NAME", "FROM", "SIZE", "ABOUT"]
    assert re.search(r"total +[\d.]+ [MG]B", inside("show").stdout)
    assert re.search(r"kernels +\w+ \(usable: ", inside("doctor").stdout)


def test_a_closed_pipe_is_not_an_error(environment: dict[str, str]) -> None:
    command = f"{sys.executable} -m headrace run --raw --max-tokens 60 'The sea' | head -c 1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, env=environment, check=False
    )
    assert len(result.stdout) == 1
    assert result.returncode == 0
    assert result.stderr == b""


FULL_DISK = Path("/dev/full")


@pytest.mark.skipif(not FULL_DISK.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [("run", "--raw", "--max-tokens", "9", "The sea"), ("list",)])
def test_a_full_disk_is_one_line(environment: dict[str, str], arguments: tuple[str, ...]) -> None:
    with (
        FULL_DISK.open("wb") as full,
        start(environment, *arguments, stdout=full, stderr=subprocess.PIPE) as process,
    ):
        assert process.stderr is not None
        message = process.stderr.read()
        assert process.wait(30) == 1
    assert message.startswith(b"error: ")
    assert b"No space left" in message
    assert message.count(b"\n") == 1


def start(environment: dict[str, str], *arguments: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments],
        env=environment,
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_serve_prints_its_address_and_stops_on_signals(
    environment: dict[str, str], number: signal.Signals, code: int
) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(environment, "serve", "--port", "0", **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.readline().decode()
        found = re.search(r"serving mini .* on (http://127\.0\.0\.1:\d+)", first)
        assert found, first
        greeting = "".join(process.stdout.readline().decode() for _ in range(5))
        for shown in ("embed, nano, novelette, tagger", f"{found[1]}/v1", f"{found[1]}/docs"):
            assert shown in greeting
        assert f"curl {found[1]}/v1/chat/completions" in greeting
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(found[1] + "/ready") as reply:
            assert json.load(reply)["status"] == "ready"
        process.send_signal(number)
        assert process.wait(30) == code
        assert process.stderr.read() == b""


@pytest.mark.parametrize("stored", [False, True])
def test_a_server_with_keys_says_so(environment: dict[str, str], headrace: Headrace, stored: bool) -> None:
    key, flags = "secret", ["--api-key", "secret"]
    if stored:
        key, flags = headrace("keys", "add", "alice").stdout.decode().strip(), []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(environment, "serve", "--port", "0", *flags, **pipes) as process:
        assert process.stdout is not None
        lines = b"".join(process.stdout.readline() for _ in range(6))
        assert b"authorization: Bearer KEY" in lines
        assert key.encode() not in lines
        found = re.search(rb":(\d+)\n", lines)
        assert found is not None
        asked = ("ps", "--port", found[1].decode())
        assert b"asks for an API key: give one with --api-key or HEADRACE_API_KEY" in headrace(*asked).stderr
        assert b"does not know this API key" in headrace(*asked, "--api-key", "another").stderr
        assert headrace(*asked, HEADRACE_API_KEY=key).returncode == 0
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize("arguments", [("ps",), ("stop", "novelette")])
def test_no_server_is_a_failure(inside: Callable[..., Outcome], arguments: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = str(unused.getsockname()[1])
    result = inside(*arguments, "--port", port)
    assert result.code == 1
    assert "no server of headrace answers" in result.stderr


def test_a_server_that_takes_too_long_is_no_absent_one(
    inside: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_call, "ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = inside("ps", "--port", str(silent.getsockname()[1]))
    assert result.code == 1 and "has not answered within 0.1 s: it may still be" in result.stderr


def test_a_port_in_use_is_wrong_usage(inside: Callable[..., Outcome]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = inside("serve", "--port", str(taken.getsockname()[1]))
    assert result.code == 2
    assert "cannot listen on" in result.stderr


def test_ctrl_c_ends_a_streamed_answer_with_130(environment: dict[str, str]) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    arguments = ("--raw", "--backend", "numpy", "--ignore-eos", "--max-tokens", "400", "The sea")
    with start(environment, "run", *arguments, **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b""


# "bracketed paste on", which prompt_toolkit writes once for each prompt, when the terminal is its own.
PROMPT = b"\x1b[?2004h"


class Terminal:
    """A process on a pseudo-terminal, and its output so far."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self.master, slave = pty.openpty()
        options = {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True}
        self.process = start(environment | {"TERM": "xterm"}, *arguments, **options)
        os.close(slave)
        self._seen = b""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self.master, 65536):
                with self._changed:
                    self._seen += part
                    self._changed.notify_all()
                if b"\x1b[6n" in part:
                    os.write(self.master, b"\x1b[1;1R")  # the cursor position, which prompt_toolkit requests
        except OSError:
            pass  # the process has ended

    def expect(self, text: bytes) -> None:
        """Wait until `text` has been written, and discard all output up to it."""
        with self._changed:
            assert self._changed.wait_for(lambda: text in self._seen, 60), (text, self._seen)
            self._seen = self._seen.partition(text)[2]

    def send(self, data: bytes) -> None:
        os.write(self.master, data)

    def say(self, line: bytes, answer: bytes) -> None:
        """Type a line at the prompt (earlier input may be lost), then wait for `answer`."""
        self.expect(PROMPT)
        self.send(line)
        self.expect(answer)

    def close(self) -> int:
        code = self.process.wait(30)
        self._reader.join(10)
        os.close(self.master)
        return code


def test_a_chat_in_the_terminal(environment: dict[str, str]) -> None:
    terminal = Terminal(environment, "run", "--max-tokens", "12", "--seed", "1")
    terminal.expect(b"/help for help")
    terminal.say(b"/help\r", b"forget the conversation")
    terminal.say(b"Hello\r", b"tokens/s")
    terminal.say(b"/set temperature 0\r", b"temperature = 0.0")
    terminal.say(b"/set temperature -1\r", b"temperature is -1.0")
    terminal.say(b"/nonsense\r", b"unknown command /nonsense")
    terminal.say(b"/rest\r", b"did you mean '/reset'?")
    terminal.say(b"one \\\rtwo\r", b"tokens/s")
    terminal.expect(PROMPT)
    terminal.send(b"\x04")
    assert terminal.close() == 0
    history = Path(environment["HOME"], ".local", "state", "headrace", "history").read_text()
    assert "+Hello" in history


def test_ctrl_c_stops_the_answer_and_not_the_program(environment: dict[str, str]) -> None:
    terminal = Terminal(
        environment,
        "run",
        "novelette",
        "--ignore-eos",
        "--backend",
        "numpy",
        "--max-tokens",
        "400",
        "--seed",  # another seed may give only empty lines
        "1",
        "--no-stats",
    )
    terminal.expect(b"/help for help")
    terminal.say(b"Hello\r", b"the")
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.expect(b"[stopped]")
    terminal.expect(PROMPT)
    terminal.send(b"/quit\r")
    assert terminal.close() == 0
