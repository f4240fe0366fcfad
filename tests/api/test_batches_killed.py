"""`kill -9` of a server in the middle of a batch: nothing is lost, nothing that was done runs again."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

LINES = 40


@contextmanager
def serving(folder: Path) -> Generator[tuple[openai.OpenAI, subprocess.Popen[bytes]]]:
    """A server as a process of its own, killed at the end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    command = [sys.executable, "-m", "headrace", "serve", "--port", "0", "--max-num-seqs", "4"]
    command += ["--store", str(folder / "store.sqlite3"), "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=kept, cwd=folder) as process:
        try:
            assert process.stdout is not None
            found = re.search(rb"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert found
            with httpx.Client(trust_env=False) as client:
                url = found[0].decode() + "/v1"
                yield openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=client), process
        finally:
            process.kill()


def replies(folder: Path) -> dict[str, bytes]:
    """What is kept of the lines that are done."""
    with sqlite3.connect(folder / "store.sqlite3") as connection:
        rows = connection.execute("SELECT custom_id, reply FROM batch_lines WHERE state = 1")
        return dict(rows.fetchall())


@pytest.mark.parametrize("done", [pytest.param(0, marks=pytest.mark.nightly), 3])
def test_a_killed_server_goes_on_with_what_is_left(tmp_path: Path, done: int) -> None:
    # Long enough that a test on a busy machine, too, kills before the last line is done.
    body = {"prompt": "Once upon a time", "max_tokens": 250, "temperature": 0.7, "ignore_eos": True}
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body | {"seed": n}}
        for n in range(LINES)
    ]
    with serving(tmp_path) as (client, process):
        file = client.files.create(file="\n".join(map(json.dumps, lines)).encode(), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        until_s = time.monotonic() + 120
        while len(replies(tmp_path)) < done:
            assert time.monotonic() < until_s
        process.kill()
        process.wait(30)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        path.name: 0o600 for path in tmp_path.iterdir()
    }
    before = replies(tmp_path)
    assert done <= len(before) < LINES
    with serving(tmp_path) as (client, _):
        batch = client.batches.retrieve(batch.id)
        while batch.status != "completed":
            assert time.monotonic() < until_s, batch
            time.sleep(0.05)
            batch = client.batches.retrieve(batch.id)
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (LINES, LINES, 0)
        assert batch.output_file_id is not None
        outputs = [json.loads(one) for one in client.files.content(batch.output_file_id).text.splitlines()]
        assert [one["custom_id"] for one in outputs] == [str(n) for n in range(LINES)]
        for custom_id, reply in before.items():  # the very same, with its id
            assert json.loads(reply) == outputs[int(custom_id)]
        [input_file] = [one for one in client.files.list() if one.id == file.id]
        assert input_file.bytes == file.bytes
