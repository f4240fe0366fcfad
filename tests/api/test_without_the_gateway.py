"""A server without the extra `gateway`: nothing of it is imported, and what needs it says what to install."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys

for name in ("aiohttp", "cryptography", "genai_prices", "jsonschema_rs"):
    sys.modules[name] = None  # as if it were not installed

import importlib.machinery, importlib.util

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if sys.modules.get(name, 1) is None else find_spec(name)
sys.path.insert(0, "tests/api")

import headrace.cli.serve_settings
from fake import FakeModel
from headrace.api.app import create_app
from headrace.config.extras import ExtraMissing
from headrace.config.sources import load_settings

providers = {"work": {"dialect": "openai_chat", "base_url": "http://127.0.0.1:1/v1"}}
settings = load_settings({"providers": providers}, environ={}, folders=[])
create_app(FakeModel(), settings, {"mini": "mini"})
loaded = {name for name in sys.modules if name.startswith(("headrace.gateway", "headrace.providers"))}
tables = {"headrace.providers", "headrace.providers.table", "headrace.providers.target"}  # checked, not used
assert loaded <= tables, loaded
try:
    create_app(FakeModel(), settings, {"far": {"provider": "work"}})
except ExtraMissing as error:
    print(error.message)
"""


def test_a_server_without_the_extra() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "this needs aiohttp, which is not installed: pip install 'headrace[gateway]'\n"
