"""The shared harness that builds and measures other engines, each call in its own process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from comparison import Case, Engine, Match
from processes import run_whole

_NEEDS = {"gguf": ("models", "llama"), "q6_k": ("gguf",)}
_NEEDS |= dict.fromkeys(("openvino", "ort", "vllm"), ("models",))
_LOG_LINES = 5  # lines of a failed build's log to show


class Failed(Exception):
    """A build or measurement of one engine failed, with its output; other engines continue."""


class Harness:
    """`scripts` is the harness, `folder` the build folder. Existing builds are reused."""

    def __init__(self, scripts: Path, folder: Path) -> None:
        self._scripts, self.folder = scripts, folder
        self._environment = {**os.environ, "PEERS_DIR": str(folder)}
        self._failed: dict[str, Failed] = {}

    def build(self, part: str, show: Callable[[str], None]) -> None:
        """Build a part and its dependencies. Raises Failed on every call for a part that cannot be built."""
        if part in self._failed:
            raise self._failed[part]
        try:
            for needed in _NEEDS.get(part, ()):
                self.build(needed, show)
            self._build(part, show)
        except Failed as failed:
            self._failed[part] = failed
            raise

    def _build(self, part: str, show: Callable[[str], None]) -> None:
        stamp = self.folder / "built" / part
        if stamp.exists():
            return
        stamp.parent.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"setup-{part}.log"
        show(f"building {part}, see {path}")
        with path.open("w") as log:
            for command in self._commands(part):
                done = subprocess.run(command, env=self._environment, stdout=log, stderr=log, check=False)
                if done.returncode:
                    tail = " | ".join(path.read_text(errors="replace").splitlines()[-_LOG_LINES:])
                    raise Failed(f"{part} was not built (exit code {done.returncode}, {path}): {tail}")
        stamp.touch()

    def _commands(self, part: str) -> list[list[str]]:
        if part != "q6_k":
            return [["bash", str(self._scripts / "setup.sh"), part]]
        models, quantize = self.folder / "models", self.folder / "build-llama" / "bin" / "llama-quantize"
        return [
            [str(quantize), str(models / f"{model}-bf16.gguf"), str(models / f"{model}-q6_k.gguf"), "Q6_K"]
            for model in ("A", "B")
        ]

    def measure(self, model: str, match: Match, case: Case, threads: int) -> dict[str, float]:
        """The case's results by name, in our units. Raises Failed."""
        words = ["--peer", match.engine.name, "--model", model, "--quant", match.quant, "--case", case.name]
        words += ["--threads", str(threads), "--reps", "1"]
        command = [sys.executable, str(self._scripts / "peers.py"), *words]
        done = run_whole(command, self._environment)
        try:
            found = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            raise Failed(f"{match.engine.name} gave no figures: {last_line(done.stderr)}") from None
        if "error" in found:
            first, *rest = found["error"].splitlines()
            raise Failed(f"{match.engine.name}: {' '.join([first, *rest[-1:]])}")
        return {figure.name: found[figure.peer] * figure.peer_unit for figure in case.figures}

    def version(self, engine: Engine) -> str:
        """The version of its package; "unknown" if it is not built."""
        names = sorted(path.name for path in self.folder.glob(engine.version_file))
        found = re.search(r"-(\d[\w.]*?)(?:\.tar\.gz|\.dist-info)$", names[-1]) if names else None
        return found[1] if found else "unknown"


def last_line(text: str) -> str:
    """The last line of output, where programs report why they ended."""
    return (text.strip().splitlines() or ["no output"])[-1]
