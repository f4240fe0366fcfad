"""Fuzzing guided by coverage, by atheris: `python tests/fuzz/harness.py TARGET SECONDS [CORPUS]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent.parent))
# The hook sees only what finders after it find, so that of an editable install goes behind it.
sys.meta_path.sort(key=lambda finder: type(finder).__name__ == "ScikitBuildRedirectingFinder")
with atheris.instrument_imports(include=["headrace"]):
    from fuzz.targets import run, seeds


def main(target: str, seconds: str, corpus: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = Path(corpus) if corpus else folder / "corpus"
        found.mkdir(exist_ok=True)
        for index, seed in enumerate(seeds(target, folder)):
            (found / f"seed-{index}").write_bytes(seed)
        options = [
            f"-max_total_time={seconds}",
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-max_len=65536",
            f"-artifact_prefix={tempfile.gettempdir()}/fuzz-{target}-",
        ]
        atheris.Setup([sys.argv[0], *options, str(found)], lambda data: run(target, folder, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
