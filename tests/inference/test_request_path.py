"""The path of one streamed chat completion: which files carry it, and on how many threads."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest
from in_process import running_server

import headrace
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

PACKAGE = Path(headrace.__file__).parent
PAGE = PACKAGE.parent.parent / "docs" / "concepts" / "request.md"
SPINE = ("api", "inference", "workers", "telemetry")
"""Packages that carry a request. Chat templates, tokenizers and the engine compute; they are not counted."""
BODY = {"messages": [{"role": "user", "content": "list all files"}], "stream": True, "max_tokens": 8}


class Trace:
    """Files of the package that run, with the threads that ran them."""

    def __init__(self) -> None:
        self.on = False
        self.files: dict[str, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if self.on and event == "call" and path.is_relative_to(PACKAGE):
            file = path.relative_to(PACKAGE).as_posix()
            self.files.setdefault(file, set()).add(threading.current_thread().name)


@pytest.fixture(scope="module")
def trace() -> Trace:
    trace = Trace()
    threading.setprofile(trace)
    try:
        model = load_model("mini", EngineOptions(threads=1))
        with running_server(model) as server:
            http = server.http()
            assert http.post("/v1/chat/completions", json=BODY).text.endswith("data: [DONE]\n\n")
            trace.on = True
            assert http.post("/v1/chat/completions", json=BODY).text.endswith("data: [DONE]\n\n")
            trace.on = False
        model.close()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)
    return trace


def test_few_files_carry_a_request(trace: Trace) -> None:
    spine = sorted(file for file in trace.files if file.startswith(SPINE))
    assert len(spine) <= 35, "\n".join(spine)


def test_three_threads_carry_a_request(trace: Trace) -> None:
    """The event loop, one for templates and tokens, and the engine's."""
    threads = set().union(*trace.files.values())
    assert len(threads) <= 3, threads


def test_the_documented_path_is_the_one_taken(trace: Trace) -> None:
    documented = set(re.findall(r"`((?:api|inference|engine)/[a-z_/]+\.py)`", PAGE.read_text()))
    elsewhere = {
        "api/http/server.py",  # runs before the first request
        "inference/handlers.py",
        "inference/loop_thread.py",  # of callers that are not asynchronous
        "engine/step_plan.py",
        "api/batch_operations.py",  # of batches and kept responses
        "inference/batches/batch_runner.py",
        "inference/response_store.py",
    }
    assert documented - elsewhere - trace.files.keys() == set()
    assert {"inference/handlers.py", "inference/local_handler.py"} <= documented
