"""`headrace bench serve` as a command: files, tables, errors."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake import FakeModel
from in_process import Running, running_server
from invocation import Outcome

Bench = Callable[[str, str], Outcome]


@pytest.fixture
def bench(inside: Callable[..., Outcome]) -> Bench:
    """`headrace bench serve URL FLAGS`; flags must not contain spaces."""
    return lambda url, flags: inside("bench", "serve", url, *flags.split())


@pytest.fixture
def server() -> Iterator[Running]:
    with running_server(FakeModel()) as running:
        yield running


def test_tables_json_and_page(bench: Bench, server: Running, tmp_path: Path) -> None:
    load = "--concurrency 1,2 --prompt-tokens 100:200 --output-tokens 4 --requests 4 --ttft-ms 60000"
    done = bench(server.url, f"{load} --json out.json --html out.html")
    assert (done.code, done.stderr) == (0, "")
    for text in ("concurrency 1: 4 of 4 requests", "concurrency 2:", "TTFT", "TPOT", "ITL", "E2E", "100%"):
        assert text in done.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert [point["level"] for point in found["points"]] == [1, 2]
    assert found["settings"]["goals"] == {"ttft_s": 60, "tpot_s": 0.1, "e2e_s": None}
    assert "<svg" in (tmp_path / "out.html").read_text()


def test_json_to_stdout_is_the_only_output(bench: Bench, server: Running) -> None:
    done = bench(server.url, "--rate 200 --requests 5 --output-tokens 2 --endpoint completions --json -")
    (point,) = json.loads(done.stdout)["points"]
    assert (point["form"], point["level"], point["succeeded"]) == ("rate", 200.0, 5)


def test_a_trace_is_replayed(bench: Bench, server: Running, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.68,137,4\n2023-11-16 18:15:46.78,5000,5\n2023-11-16 18:15:46.88,139,5\n"
    )
    done = bench(server.url, "--trace trace.csv --longest 200 --speed 10,20 --json -")
    found = json.loads(done.stdout)
    assert [(one["level"], one["succeeded"], one["output_tokens"]) for one in found["points"]] == [
        (10, 2, 9),
        (20, 2, 9),
    ]
    assert found["notes"] == ["--longest left out 1 requests of the trace's 3"]


def test_a_plot(bench: Bench, server: Running, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture is drawn by matplotlib, of the extra `bench`")
    done = bench(server.url, "--concurrency 1,2 --requests 4 --output-tokens 3 --png out.png")
    assert done.code == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_names_the_extra(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = bench("http://127.0.0.1:9", "--png out.png")
    assert done.code == 2
    assert "headrace[bench]" in done.stderr
    assert "--html" in done.stderr


def test_when_nothing_succeeds_the_command_fails(bench: Bench, server: Running) -> None:
    # The check of the first request asks for four tokens, which fit.
    load = "--concurrency 1 --requests 3 --warmup 0 --prompt-tokens 60 --output-tokens 4090"
    done = bench(server.url, load)
    assert done.code == 1
    assert "3 failed (http 400): prompt has" in done.stderr
    assert "the limit is 4,096: shorten it" in done.stderr
    assert "error: no request succeeded; the first failed with http 400" in done.stderr


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--concurrency 0", "--concurrency"),
        ("--concurrency 1.5", "--concurrency"),
        ("--concurrency 1,,2", "--concurrency"),
        ("--rate 0", "--rate"),
        ("--rate inf", "--rate"),
        ("--rate x", "--rate"),
        ("--rate 1 --concurrency 1", "exclude each other"),
        ("--speed 2", "--trace"),
        ("--longest 2", "--trace"),
        ("--trace absent.csv", "absent.csv"),
        ("--trace a --prompts b", "exclude each other"),
        ("--prompts b --prompt-tokens 3", "exclude each other"),
        ("--prompts absent.jsonl", "absent.jsonl"),
        ("--prompts absent.jsonl --output-tokens 1:2", "one number"),
        ("--prompt-tokens many", "--prompt-tokens"),
        ("--endpoint embeddings", "chat or completions"),
        ("--body [1]", "JSON object"),
        ("--requests 0", "--requests"),
        ("--html no/such/folder/out.html", "--html"),
    ],
)
def test_invalid_flags_are_rejected_before_any_load(bench: Bench, flags: str, named: str) -> None:
    done = bench("http://127.0.0.1:9", flags)
    assert (done.code, done.stdout) == (2, "")
    assert named in done.stderr


def test_each_run_sends_other_prompts_unless_it_has_a_seed(bench: Bench, server: Running) -> None:
    load = "--concurrency 1 --prompt-tokens 40 --output-tokens 2 --requests 2 --warmup 0 --json -"
    seeds = [json.loads(bench(server.url, load).stdout)["settings"]["seed"] for _ in range(2)]
    assert seeds[0] != seeds[1]
    assert json.loads(bench(server.url, f"{load} --seed 7").stdout)["settings"]["seed"] == 7
    shown = bench(server.url, load.removesuffix(" --json -")).stdout
    assert "sends the same prompts again" in shown
