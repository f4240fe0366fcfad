"""What a user gets: a small install, a fast import, a first example; tests/docs runs the others."""

from __future__ import annotations

import importlib.metadata
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_base_install_is_small() -> None:
    """Every file that `pip install headrace` brings; models and pip's byte code are printed beside them."""
    todo, seen, files = ["headrace"], set[str](), list[Path]()
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        distribution = importlib.metadata.distribution(name)
        for text in distribution.requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(requirement.name)
        files += [Path(str(distribution.locate_file(file))) for file in distribution.files or []]
    package = ROOT / "src" / "headrace"  # an editable install records only a pointer to these
    sizes = {file: file.stat().st_size for file in {*files, *package.rglob("*")} if file.is_file()}
    byte_code = sum(size for file, size in sizes.items() if file.suffix == ".pyc")
    total = sum(sizes.values()) - byte_code
    models = sum(size for file, size in sizes.items() if package / "bundled" in file.parents)
    print(
        f"base install: {(total - models) / 1e6:.0f} MB in {len(seen)} packages, "
        f"{models / 1e6:.0f} MB models, and {byte_code / 1e6:.0f} MB byte code"
    )
    assert total - models <= 150e6, sorted(seen)  # test_shipped.py bounds the models
    assert not seen & {"torch", "transformers", "scipy", "pandas"}


def test_the_python_example_runs(tmp_path: Path) -> None:
    [example, *_] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(example.strip().splitlines()) == 3
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("tar ")


def test_make_run_runs() -> None:
    if not (ROOT / ".venv" / ".installed").exists():
        pytest.skip("this environment was not made by `make run`")
    run = subprocess.run(["make", "run"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) > 30
    assert "SELECT" in run.stdout


def test_the_import_takes_little_time() -> None:
    """Printed, not asserted: what must stay out of it is asserted in test_llm.py."""
    script = "import time; t = time.perf_counter(); import headrace; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
        for _ in range(5)
    ]
    print(f"import headrace: {1000 * statistics.median(times):.1f} ms")
