"""The code blocks of a Markdown page, run in order as a reader would: shell, Python, configuration files,
one server.

A page steers its test with comments before a block: `<!-- test: skip REASON -->` (nothing runs),
`<!-- test: append FLAGS -->` (behind each command). A block with `title="NAME"` in another language than
Python or shell is written to the file NAME; with `title="src/…"` it quotes that file. `headrace serve …`
starts the page's server and takes the last one's place."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

FENCE = re.compile(
    r"(?P<comments>(?:^[ ]*<!-- test: [^\n]* -->\n+)*)"
    r"^(?P<indent>[ ]*)```(?P<language>[a-z]+)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
DIRECTIVE = re.compile(r"<!-- test: (\w+) ?(.*?) -->")
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
# A page's Python blocks share their names: one interpreter takes them line by line, each as a JSON string.
INTERPRETER = """
import json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "snippet", "exec"), names)
        print("\\n\\x04ok", flush=True)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        print("\\n\\x04failed", flush=True)
"""


@dataclass(frozen=True)
class Snippet:
    """One block: its language, text, `title`, and the directives before it by their word."""

    language: str
    text: str
    title: str
    directives: dict[str, str]
    line: int


def snippets(page: Path) -> list[Snippet]:
    """The code blocks of a page."""
    text = page.read_text()
    found: list[Snippet] = []
    for match in FENCE.finditer(text):
        indent = match["indent"]
        lines = [line.removeprefix(indent) for line in match["text"].splitlines()]
        title = re.search(r'title="([^"]*)"', match["info"])
        found.append(
            Snippet(
                match["language"],
                "\n".join(lines) + "\n",
                title[1] if title else "",
                dict(DIRECTIVE.findall(match["comments"])),
                text.count("\n", 0, match.start("language")) + 1,
            )
        )
    return found


def _check_quotation(snippet: Snippet) -> str:
    """Every line of a block that quotes a file stands in that file, in this order; `...` leaves lines out."""
    rest = iter((ROOT / snippet.title).read_text().splitlines())
    for line in snippet.text.splitlines():
        if line.strip() not in ("...", ""):
            assert line in rest, f"{snippet.title} has no line {line!r} there"
    return ""


class Page:
    """A page that is being run in `folder`; everything that headrace keeps lies there, too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_DATA_HOME": str(folder / "data"),
            "HEADRACE_PORT": str(self.port),
            "HEADRACE_OFFLINE": "true",
        }
        self._server: subprocess.Popen[bytes] | None = None
        self._python: subprocess.Popen[str] | None = None

    def run(self, snippet: Snippet) -> str:
        """Run a block and return what it printed; AssertionError where it fails."""
        if "skip" in snippet.directives:
            assert len(snippet.directives["skip"]) > 10, "say why the block cannot run"
            return ""
        text = snippet.text.replace(":8080", f":{self.port}")
        if snippet.title.startswith("src/"):
            return _check_quotation(snippet)
        if snippet.language == "python":
            return self._run_python(text)
        if snippet.language == "sh":
            return self._run_shell(text, snippet.directives.get("append", ""))
        if snippet.title:
            (self.folder / snippet.title).write_text(text)
        if snippet.language == "json":
            json.loads(text)
        return ""

    def close(self) -> None:
        """End the server and the interpreter; the server has to end well."""
        if self._python is not None:
            with self._python as python:  # closes its pipes and waits
                assert python.stdin is not None
                python.stdin.close()
        self._stop_server()

    def _run_shell(self, text: str, flags: str) -> str:
        if text.startswith("headrace serve") or " headrace serve" in text.splitlines()[0]:
            self._serve(text)
            return ""
        if flags:
            text = "\n".join(f"{line} {flags}" for line in text.replace("\\\n", "").strip().splitlines())
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text.replace("curl ", "curl --fail ")],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert run.returncode == 0, f"{text}\n{run.stdout}\n{run.stderr}"
        assert run.stdout.strip(), f"{text}\nprinted nothing"
        return run.stdout

    def _run_python(self, text: str) -> str:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-W", "error", "-u", "-c", INTERPRETER],
                cwd=self.folder, env=self.environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self._python.stdin is not None and self._python.stdout is not None
        self._python.stdin.write(json.dumps(text) + "\n")
        self._python.stdin.flush()
        printed = ""
        for line in self._python.stdout:
            if line.startswith("\x04"):
                assert line == "\x04ok\n", f"{text}\n{printed}"
                assert printed.strip() or "print(" not in text, f"{text}\nprinted nothing"
                return printed
            printed += line
        raise AssertionError(f"the interpreter ended\n{text}\n{printed}")

    def _serve(self, command: str) -> None:
        self._stop_server()
        with (self.folder / "server.log").open("wb") as log:
            self._server = subprocess.Popen(
                ["bash", "-c", f"exec env {command.strip()}"],
                cwd=self.folder, env=self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/ready", trust_env=False).raise_for_status()
                return
            except httpx.HTTPError:
                log_text = (self.folder / "server.log").read_text
                assert self._server.poll() is None, f"{command}\n{log_text()}"
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.05)

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.terminate()
            code = self._server.wait(timeout=60)
            assert code == 0, f"the server ended with {code}\n{(self.folder / 'server.log').read_text()}"
            self._server = None
