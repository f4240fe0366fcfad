"""What a user gets: a small install, a fast import, shipped files, and prose that is true."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


CLIENTS = [
    block for block in blocks("python") if block.startswith(("from openai", "from ollama", "from anthropic"))
]


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
    example, *_ = blocks("python")
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


def test_quoted_code_is_the_packages() -> None:
    """The developer section quotes a model file; every line of it still stands there."""
    quotes = [block for block in blocks("python")[1:] if block not in CLIENTS]
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "headrace").rglob("*.py"))
    for quote in quotes:
        for line in quote.splitlines():
            assert line.strip() == "..." or line.strip() in source, line


def test_the_shell_examples_run(tmp_path: Path) -> None:
    [commands] = [block for block in blocks("sh") if "headrace run" in block]
    for command in commands.strip().splitlines():
        run = subprocess.run(
            command, shell=True, cwd=tmp_path, env=with_headrace(), capture_output=True, timeout=120
        )
        assert run.returncode == 0, (command, run.stderr.decode())
        assert run.stdout


def test_the_curl_example_runs(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    [example] = [block for block in blocks("sh") if "curl" in block]
    with serving(tmp_path) as port:
        command = example.replace("curl ", "curl -sf ").replace(":8080", f":{port}")
        run = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        assert '"chat.completion"' in run.stdout


def test_the_load_examples_run(tmp_path: Path) -> None:
    trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,91,16\n"
    (tmp_path / "trace.csv").write_text(trace)
    [commands] = [block for block in blocks("sh") if "bench serve" in block]
    with serving(tmp_path) as port:
        for command in commands.strip().splitlines():
            command = command.replace(":8080", f":{port}") + " --requests 4"
            run = subprocess.run(
                command, shell=True, cwd=tmp_path, env=with_headrace(), capture_output=True, timeout=120
            )
            assert run.returncode == 0, (command, run.stderr.decode())
            assert b"failed" not in run.stderr
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "figures.json").exists()


def test_the_examples_of_other_clients_run(tmp_path: Path) -> None:
    assert CLIENTS
    with serving(tmp_path) as port:
        for example in CLIENTS:
            command = [sys.executable, "-W", "error", "-c", example.replace(":8080", f":{port}")]
            run = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert run.returncode == 0, run.stderr
            assert len(run.stdout.split()) > 5


def test_make_run_runs() -> None:
    if not (ROOT / ".venv" / ".installed").exists():
        pytest.skip("this environment was not made by `make run`")
    run = subprocess.run(["make", "run"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) > 30
    assert "tokens/s" in run.stderr


def test_the_import_takes_little_time() -> None:
    """Printed, not asserted: what must stay out of it is asserted in test_llm.py."""
    script = "import time; t = time.perf_counter(); import headrace; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
        for _ in range(5)
    ]
    print(f"import headrace: {1000 * statistics.median(times):.1f} ms")


def with_headrace() -> dict[str, str]:
    """The environment with this interpreter's `headrace` first on the path."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """`headrace serve` in `folder`, until the block ends; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        ["headrace", "serve", "mini", "novelette", "--port", str(port)],
        cwd=folder, env=with_headrace(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until_ready(server, port)
        yield port
    finally:
        server.terminate()
        assert server.wait(timeout=30) == 0


def wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).raise_for_status()
            return
        except httpx.HTTPError:
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)


def test_the_readmes_tree_is_the_packages() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "tree.py"), "--check"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout
