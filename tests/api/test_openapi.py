"""The OpenAPI document tells the truth: requests made from it, valid and not, get what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake import FakeEngine, FakeModel
from in_process import Running, running_server

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,negative_data_rejection"
)

EXAMPLES = os.environ.get("TEST_API_EXAMPLES", "3")  # of each operation; 500 by `make nightly`
EVERY = int(os.environ.get("TEST_API_EVERY", "12"))  # body is tried field by field; 1 nightly
HOLDS_ANOTHER = ("/v1/routes/score", "/v1beta/models/{model}:countTokens")
"""The body of these has another path's body as a field."""
OFF = r"/v1/(adapt/|fine_tuning/|(un)?load_lora_adapter$)"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    people = tmp_path_factory.mktemp("datasets") / "people.csv"
    people.write_text("name\nAnn\n")
    datasets = {"people": {"from": f"file:{people}"}}
    model = FakeModel(engine=FakeEngine("answer"))
    with running_server(model, offline=True, datasets=datasets, sql={"seconds": 5}) as server:
        yield server


def including(paths: list[str]) -> list[str]:
    return [word for path in paths for word in ("--include-path", path)]


def bodies_once(document: dict[str, Any], paths: list[str]) -> list[str]:
    """Of the paths that take the same body the first, and those that take none."""
    found: dict[str, str] = {}
    for path in paths:
        bodies = [one["requestBody"] for one in document["paths"][path].values() if "requestBody" in one]
        if path not in HOLDS_ANOTHER:
            found.setdefault(json.dumps(bodies, sort_keys=True) if bodies else path, path)
    return list(found.values())


def test_requests_made_from_the_document(served: Running, tmp_path: Path) -> None:
    """Many requests of each operation, valid and not; by a program: the plugin lags behind pytest. Two runs
    of it at once, since one takes one core, and no more, since each takes seconds to read the document. What
    is not enabled here answers 501; it has tests of its own. Every value of every field is tried at one path
    of those that take the same body."""
    document = served.http().get("/openapi.json").json()
    every = sorted(path for path in document["paths"] if not re.match(OFF, path))
    runs = [
        ["--phases", "coverage", *including(bodies_once(document, every)[::EVERY])],
        ["--phases", "examples,fuzzing,stateful", "--exclude-path-regex", f"^{OFF}"],
    ]
    with ThreadPoolExecutor(len(runs)) as pool:
        ended = list(pool.map(lambda chosen: _requests(served.url, chosen, tmp_path), runs))
    for run in ended:
        print(run.stdout[-1500:])
    for run in ended:
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-1000:]


def _requests(url: str, chosen: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", *chosen]
    command += ["--checks", CHECKS, "--max-examples", EXAMPLES, "--mode", "all", "--no-color"]
    command += ["--generation-deterministic", "--warnings", "off"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800)


def test_every_route_is_described(served: Running) -> None:
    document = served.http().get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], path
            statuses = set(operation["responses"])
            overloaded = "529" if path.startswith("/v1/messages") else "503"
            assert {"200", "400", "403", "500", overloaded} <= statuses, path
            assert ("422" in statuses) == (method == "post"), path
            assert ("401" in statuses) == (path not in ("/health", "/ready"))
            if method == "post":
                assert {"404", "408", "413", "429"} <= statuses
    text = json.dumps(document)
    for name in re.findall(r"#/components/schemas/([\w.]+)", text):
        assert name in document["components"]["schemas"]
    assert "/tmp" not in text and "/root" not in text


def test_requests_may_have_an_idempotency_key(served: Running) -> None:
    paths = served.http().get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            names = {one["name"] for one in operation.get("parameters", ())}
            assert ("Idempotency-Key" in names) == (method == "post"), (method, path)
            if method == "post":
                assert {"409", "422"} <= operation["responses"].keys(), path


def test_the_page_of_the_document_needs_nothing_from_elsewhere(served: Running) -> None:
    reply = served.http().get("/docs")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert "POST /v1/chat/completions" in reply.text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|<script", reply.text)
