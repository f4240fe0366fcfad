"""Load on real servers in this process: load patterns, errors, notes, and reports."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fake import FakeModel, overloaded
from in_process import Running, running_server
from msgspec.structs import replace

from headrace.bench.serve.arrivals import ArrivalProcess, Point, run_point
from headrace.bench.serve.html_report import html
from headrace.bench.serve.json_report import document
from headrace.bench.serve.length_distribution import parse_lengths
from headrace.bench.serve.metrics import Goals
from headrace.bench.serve.result import Outcome
from headrace.bench.serve.runner import BenchConfig, Report, bench_serve
from headrace.bench.serve.synthetic_text import read_lexicon
from headrace.bench.serve.target import ServerError, Target, parse_target
from headrace.bench.serve.trace import TraceRequest
from headrace.bench.serve.workload import SyntheticWorkload, TraceWorkload, read_prompts
from headrace.errors import EngineStopped, UsageError
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions


@pytest.fixture(scope="module")
def real() -> Iterator[Running]:
    """The bundled model behind the complete server."""
    model = load_model("novelette", EngineOptions(max_num_seqs=16, max_batch_tokens=256))
    try:
        with running_server(model) as running:
            yield running
    finally:
        model.close()


@pytest.fixture
def fake() -> Iterator[Running]:
    model = FakeModel()
    with running_server(model) as running:
        yield running
        model.engine.go.set()


def lengths(prompt: str, output: str) -> SyntheticWorkload:
    return SyntheticWorkload(parse_lengths(prompt, "prompt_tokens"), parse_lengths(output, "output_tokens"))


def order(url: str, *levels: int, endpoint: Any = "completions", **more: Any) -> BenchConfig:
    given = {
        "model": None,
        "workload": lengths("20", "4"),
        "requests": 8,
        "warmup": 1,
        "goals": Goals(ttft_s=60),
    }
    points = tuple(Point("concurrency", level) for level in levels or (1,))
    return BenchConfig(target=parse_target(url, endpoint), points=points, **(given | more))


def quiet(label: str, done: int, total: int) -> None: ...


def measure(wanted: BenchConfig, progress: Callable[[str, int, int], None] = quiet) -> Report:
    return asyncio.run(bench_serve(wanted, progress))


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_prompts_and_answers_have_the_requested_lengths(real: Running, endpoint: str) -> None:
    seed = ["chat", "completions"].index(endpoint)
    wanted = order(real.url, 1, 3, endpoint=endpoint, workload=lengths("40:70", "2:9"), seed=seed)
    report = measure(wanted)
    assert report.model == real.model.name
    assert report.notes == ()
    for one, outcomes, level in zip(report.figures, report.outcomes, (1, 3), strict=True):
        assert (one.succeeded, one.requests, one.faults) == (8, 8, ())
        assert one.peak_in_flight == level
        assert all(40 <= (outcome.prompt_tokens or 0) <= 70 for outcome in outcomes)
        assert all(2 <= outcome.output_tokens <= 9 for outcome in outcomes)
        assert one.good_share == 1.0
        for found in (one.ttft_s, one.tpot_s, one.itl_s, one.e2e_s):
            assert found is not None
            assert 0 <= found.min <= found.p50 <= found.p99 <= found.max
    first, second = report.outcomes
    assert [one.prompt_tokens for one in first] == [one.prompt_tokens for one in second]


def test_cached_prompts_are_noted(real: Running) -> None:
    wanted = order(real.url, workload=lengths("70", "2"), seed=100)
    assert measure(wanted).notes == ()
    (note,) = measure(wanted).notes
    assert "--seed" in note


def test_traces_reproduce_shared_prefixes(real: Running) -> None:
    blocks = [TraceRequest(0.01 * index, 400, 3, (index // 4,)) for index in range(8)]
    wanted = order(real.url, workload=TraceWorkload(Path("trace.jsonl"), tuple(blocks)), warmup=0, seed=200)
    report = measure(replace(wanted, points=(Point("speed", 2.0),)))
    (found,) = report.figures
    assert (found.succeeded, found.prompt_tokens) == (8, 3200)
    dues = [one.due_s for one in report.outcomes[0]]
    assert [due - dues[0] for due in dues] == pytest.approx([0.005 * index for index in range(8)])
    assert found.cached_tokens is not None
    # Requests that arrived while the first with the prefix was computed are not cached.
    assert found.cached_tokens / found.prompt_tokens > 0.2


def held_load(server: Running, point: Point, seen: int) -> list[Outcome]:
    """Six requests to a blocked engine, which continues when `seen` of them have arrived."""
    engine = server.model.engine
    target = parse_target(server.url, "completions")
    body = {"prompt": "a", "max_tokens": 3, "stream": True}
    request = target.request("/v1/completions", body)
    sendings = [ArrivalProcess(request, 0.002 * index) for index in range(6)]

    async def run() -> list[Outcome]:
        engine.go.clear()
        load = asyncio.create_task(run_point(target, point, sendings, 30.0, lambda done: None))
        while len(engine.submitted) < seen:
            await asyncio.sleep(0.001)
        engine.go.set()
        return await load

    return asyncio.run(run())


def peak_concurrency(outcomes: list[Outcome]) -> int:
    return max(sum(two.sent_s <= one.sent_s < two.ended_s for two in outcomes) for one in outcomes)


def test_an_open_loop_does_not_wait_for_a_blocked_server(fake: Running) -> None:
    outcomes = held_load(fake, Point("rate", 500.0), seen=6)
    assert peak_concurrency(outcomes) == 6
    assert all(one.fault is None and one.due_s <= one.sent_s < one.output_s[0] for one in outcomes)


def test_a_closed_loop_has_fixed_concurrency(fake: Running) -> None:
    outcomes = held_load(fake, Point("concurrency", 2.0), seen=2)
    assert peak_concurrency(outcomes) == 2
    assert all(one.fault is None for one in outcomes)


@pytest.mark.parametrize(
    ("attribute", "error", "kind", "refused"),
    [
        ("refusal", overloaded(), "http 503", 4),
        ("failure", EngineStopped("the engine has failed: start it again"), "stream error", 0),
    ],
)
def test_rejected_and_aborted_requests_are_counted(
    fake: Running, attribute: str, error: Exception, kind: str, refused: int
) -> None:
    def break_it(label: str, done: int, total: int) -> None:
        if label == "concurrency 1" and done == 4:
            setattr(fake.model.engine, attribute, error)

    (found,) = measure(order(fake.url), break_it).figures
    assert (found.succeeded, found.refused, found.failed) == (4, refused, 4 - refused)
    assert [(one.kind, one.count, one.message) for one in found.faults] == [(kind, 4, str(error))]
    assert found.good_share == 0.5


def test_a_request_that_times_out_is_cancelled(fake: Running) -> None:
    engine = fake.model.engine
    target = parse_target(fake.url, "completions")
    request = target.request("/v1/completions", {"prompt": "a", "max_tokens": 3, "stream": True})
    engine.go.clear()
    point = Point("concurrency", 1.0)
    (found,) = asyncio.run(run_point(target, point, [ArrivalProcess(request)], 0.2, lambda done: None))
    assert found.fault is not None
    assert found.fault.kind == "timeout"
    assert engine.cancelled_event.wait(20)


def test_without_a_server_each_request_fails() -> None:
    with stub({}) as url:
        target = parse_target(url, "chat")
    sendings = [ArrivalProcess(target.request("/v1/chat/completions", {}))] * 3
    found = asyncio.run(run_point(target, Point("concurrency", 2.0), sendings, 5.0, lambda done: None))
    assert [one.fault.kind for one in found if one.fault] == ["connection"] * 3


def test_a_rejected_first_request_shows_the_servers_error_and_a_remedy(fake: Running) -> None:
    with pytest.raises(ServerError, match=r"404: .*'nope'.*--model") as caught:
        measure(order(fake.url, model="nope"))
    assert fake.model.name in caught.value.message  # a model that it serves
    with pytest.raises(ServerError, match=r"400: .*ignore_eros"):
        measure(order(fake.url, body={"ignore_eros": True}))
    with pytest.raises(ServerError, match=r"400: .*the limit is 4,096"):
        measure(order(fake.url, workload=lengths("5000", "4")))
    with pytest.raises(UsageError, match=r"/v2/models.*404.*--model"):
        measure(order(fake.url + "/v2"))


def test_error_without_a_server_says_how_to_start_one() -> None:
    with stub({}) as url:
        pass
    with pytest.raises(ServerError, match=r"no server answers at http://127.*headrace serve"):
        measure(order(url))


def test_the_key_is_sent_and_never_reported() -> None:
    model = FakeModel()
    with running_server(model, api_key="sesame-key") as server:
        with pytest.raises(ServerError, match=r"401.*--api-key"):
            measure(order(server.url))
        target = parse_target(server.url, "completions", "sesame-key")
        report = measure(replace(order(server.url), target=target))
    assert report.figures[0].succeeded == 8
    assert "sesame" not in json.dumps(document(report)) + html(report)
    with pytest.raises(UsageError, match="an HTTP header cannot contain"):
        parse_target("http://127.0.0.1", "chat", "two\r\nlines")


@contextmanager
def stub(replies: dict[str, Any]) -> Iterator[str]:
    """A server that replies to each path with one JSON document, or with the result of a function of the
    body.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
            reply = replies.get(self.path)
            reply = reply(body) if callable(reply) else reply
            content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(404 if reply is None else 200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


STREAM = b'data: {"choices":[{"text":"Hi"}]}\n\ndata: {"choices":[{"text":" you"}]}\n\ndata: [DONE]\n\n'


def test_assumptions_without_tokenize_and_usage_are_reported() -> None:
    with stub({"/v1/models": {"data": [{"id": "other"}]}, "/v1/completions": STREAM}) as url:
        report = measure(order(url))
    assert report.model == "other"
    assert report.figures[0].output_tokens == 16
    assert not report.figures[0].tokens_reported
    assert [note.partition(":")[0] for note in report.notes] == [
        "the server has no /tokenize",
        "the server reported no usage for some answers",
    ]


def test_an_answer_that_does_not_stream_is_an_error() -> None:
    reply = {"choices": [{"text": "Hi"}]}
    with (
        stub({"/v1/models": {"data": [{"id": "other"}]}, "/v1/completions": reply}) as url,
        pytest.raises(ServerError, match="did not stream an answer"),
    ):
        measure(order(url))


def test_words_are_counted_with_llama_cpps_tokenize() -> None:
    def tokenize(body: dict[str, Any]) -> object:
        # One token per letter and space, and a BOS token; `prompt` is not one of its fields.
        return {"tokens": list(range(1 + len(body["content"])))} if "content" in body else {"tokens": []}

    with stub({"/tokenize": tokenize}) as url:
        found = asyncio.run(read_lexicon(parse_target(url, "completions"), "m"))
        assert asyncio.run(read_lexicon(parse_target(url, "chat"), "m")) == found  # the template is unknown
    assert found.base_tokens == 2
    assert all(cost == 1 + len(word) for word, cost in zip(found.words, found.costs, strict=True))


def test_the_html_page_is_self_contained_and_escapes_server_text(fake: Running) -> None:
    report = replace(
        measure(order(fake.url, 1, 2)), model="<script>alert(1)</script>", server="<u>", notes=("<i>",)
    )
    page = html(report)
    assert not re.search(r"<(script|link|img|iframe|i>|u>)|\b(src|href)=|url\(|@import", page)
    assert "&lt;script&gt;" in page
    assert page.count("<svg") == page.count("</svg>") == 6
    assert "nan" not in page
    assert html(replace(report, figures=report.figures[:1], outcomes=report.outcomes[:1])).count("<svg") == 3


def test_the_json_report_has_every_metric(fake: Running) -> None:
    found = json.loads(json.dumps(document(measure(order(fake.url, 2)))))
    (point,) = found["points"]
    assert (point["form"], point["level"], point["succeeded"]) == ("concurrency", 2.0, 8)
    assert {"mean", "p50", "p90", "p95", "p99"} < set(point["ttft_s"])
    assert found["settings"]["prompt_tokens"] == "20"
    assert found["machine"]["cores"] >= 1


def test_repeated_prompts_are_noted(fake: Running, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Tell me of the sea."}\n' * 3, encoding="utf-8")
    report = measure(order(fake.url, workload=read_prompts(path, "completions", 5), ignore_eos=False))
    assert "more than once" in report.notes[0]
    assert not fake.model.engine.submitted[-1].params.ignore_eos


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://127.0.0.1:8080", "/v1"),
        ("http://127.0.0.1:8080/", "/v1"),
        ("http://localhost/api/v1/", "/api/v1"),
        ("https://[::1]:8443/openai", "/openai"),
    ],
)
def test_a_url_path_is_kept_and_defaults_to_v1(url: str, root: str) -> None:
    target: Target = parse_target(url, "chat")
    assert target.root == root
    assert (target.address.tls is not None) == url.startswith("https")
    assert target.url.startswith(url.split("/v1")[0].rstrip("/").replace("localhost", "localhost:80"))


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "ftp://x", "http://", "http://x:99999", "http://x?a=1", ""]
)
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(UsageError, match=r"http://127\.0\.0\.1:8080"):
        parse_target(url, "chat")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"requests": 0}, "--requests"),
        ({"warmup": -1}, "--warmup"),
        ({"timeout_s": 0.0}, "--timeout"),
        ({"goals": Goals(tpot_s=0.0)}, "--tpot-ms"),
        ({"goals": Goals(e2e_s=float("nan"))}, "--e2e-ms"),
    ],
)
def test_an_invalid_config_names_the_flag(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        order("http://127.0.0.1", **change)
