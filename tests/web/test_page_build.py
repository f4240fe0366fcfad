"""The page that is shipped is the one that its sources make."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import headrace.api.web

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "web"
SHIPPED = Path(headrace.api.web.__file__).parent / "page"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_versions_are_exact_and_locked() -> None:
    package = json.loads((SOURCES / "package.json").read_text())
    lock = json.loads((SOURCES / "package-lock.json").read_text())["packages"]
    for name, version in {**package["dependencies"], **package["devDependencies"]}.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), name
        assert lock[f"node_modules/{name}"]["version"] == version
    assert all("integrity" in entry for name, entry in lock.items() if name)
    assert not any("resolved" in entry for entry in lock.values()), "the lock names no mirror"


def test_the_shipped_page_is_what_the_sources_make(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no Node")
    if not (SOURCES / "node_modules" / "esbuild").is_dir():
        pytest.skip("web/node_modules is missing: npm ci --prefix web")
    subprocess.run(["node", "build.mjs", str(tmp_path / "page")], cwd=SOURCES, check=True, timeout=120)
    assert files(tmp_path / "page") == files(SHIPPED), "run: npm run build --prefix web"


def test_the_types_of_the_sources(tmp_path: Path) -> None:
    tsc = SOURCES / "node_modules" / ".bin" / "tsc"
    if shutil.which("node") is None or not tsc.exists():
        pytest.skip("web/node_modules is missing: npm ci --prefix web")
    checked = subprocess.run([tsc, "--noEmit"], cwd=SOURCES, capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stdout
