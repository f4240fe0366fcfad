"""Our measurements with `headrace bench engine`, and the version of the sources."""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
from pathlib import Path

from comparison import Case, Match
from processes import run_whole
from their_side import Failed, last_line

import headrace

_REPOSITORY = Path(__file__).resolve().parent.parent.parent
_SOURCES = ("src", "native", "CMakeLists.txt")


def compile_modules() -> None:
    """Compile our modules, as an installer does, so that cold starts do not include it."""
    compileall.compile_dir(Path(headrace.__file__).parent, quiet=1)


def measure(folder: Path, model: str, match: Match, case: Case, threads: int) -> dict[str, float]:
    """The case's results by name; packed weights are cached in `folder`. Measured once, like the peer:
    repeats while the machine is busy would be an advantage. Raises Failed.
    """
    path = folder / "models" / match.model_file.format(model)
    words = [
        "--quantization",
        match.weights,
        "--threads",
        str(threads),
        "--cache-dir",
        str(folder / "packed"),
    ]
    words += ["--prompt", str(case.prompt), "--generate", str(case.generate), "--batch", str(case.batch)]
    command = [sys.executable, "-m", "headrace", "bench", "engine", str(path), *words]
    command += ["--runs", "1", "--repeats", "0", "--json", "--offline"]
    done = run_whole(command)
    if done.returncode:
        raise Failed(f"headrace: {last_line(done.stderr)}")
    found = json.loads(done.stdout)
    return {figure.name: found[figure.ours]["median"] for figure in case.figures}


def version() -> str:
    """The package's version, with the last commit that changed its sources, if this is a checkout."""
    commit = _git("log", "-1", "--format=%h")
    if not commit:
        return headrace.__version__
    return f"{headrace.__version__} ({commit}{', changed since' if _git('status', '--porcelain') else ''})"


def _git(*words: str) -> str:
    command = ["git", "-C", str(_REPOSITORY), *words, "--", *_SOURCES]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
