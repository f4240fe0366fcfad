"""GET /metrics over the running server."""

from __future__ import annotations

import time

from in_process import Running
from prometheus_client.parser import text_string_to_metric_families

from headrace.engine.request import Delta, EngineEvent
from headrace.telemetry.request_metrics import ModelMetrics, RequestMetrics

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


def samples(server: Running) -> dict[str, float]:
    reply = server.http().get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            assert {"model", "model_name"} & set(sample.labels) or sample.name.startswith("llamacpp:")
            labels = {k: v for k, v in sample.labels.items() if k not in ("model", "model_name", "engine")}
            found[sample.name + "".join(f"{{{k}={v}}}" for k, v in labels.items())] = sample.value
    return found


def test_what_requests_leave_behind(server: Running) -> None:
    http = server.http()
    assert http.post(CHAT, json=BODY | {"user": "me"}).status_code == 200
    assert http.post(CHAT, json=BODY | {"stream": True}).status_code == 200
    assert http.post(CHAT, json=BODY | {"n": 0}).status_code == 400
    found = samples(server)
    expected = {
        "headrace_requests_total{finish_reason=length}": 2,
        "headrace_generation_tokens_total": 12,  # a token is a byte, and there is an é
        "headrace_time_to_first_token_seconds_count": 2,
        "headrace_inter_token_latency_seconds_count": 8,
        "headrace_time_per_output_token_seconds_count": 2,
        "headrace_request_seconds_count": 2,
        "headrace_warnings_total{kind=user}": 1,
        "headrace_http_replies_total{status=200}": 2,
        "headrace_http_replies_total{status=400}": 1,
        "headrace_cancelled_total": 0,
        "vllm:request_success_total{finished_reason=length}": 2,
        "vllm:generation_tokens_total": 12,
    }
    assert {name: found.get(name) for name in expected} == expected
    first, whole = "headrace_time_to_first_token_seconds_sum", "headrace_request_seconds_sum"
    assert 0 < found[first] < found[whole]


def test_a_client_that_leaves_is_counted_as_cancelled(server: Running) -> None:
    server.model.engine.pause_s = 0.01
    server.model.engine.answer = "x" * 2000
    http = server.http()
    with http.stream("POST", CHAT, json={"messages": BODY["messages"], "stream": True}) as stream:
        next(stream.iter_raw())
    while samples(server)["headrace_cancelled_total"] != 1:
        pass
    assert samples(server)["vllm:request_success_total{finished_reason=abort}"] == 1


def test_metrics_need_the_key_and_hold_no_request_ids(serve) -> None:
    server = serve(api_key="secret")
    assert server.http().get("/metrics").status_code == 401
    http = server.http(headers={"authorization": "Bearer secret", "x-request-id": "find-me"})
    assert http.post(CHAT, json=BODY).status_code == 200
    text = http.get("/metrics").text
    assert "find-me" not in text and "secret" not in text and "hello" not in text


def test_the_cost_of_a_token_is_printed() -> None:
    request = RequestMetrics(ModelMetrics(), 0.0)
    events: list[EngineEvent] = [Delta(0, "a", (1,))]
    start_s = time.perf_counter()
    for step in range(10_000):
        request.take(events, 1.0 + step * 0.01)
    print(f"metrics cost {(time.perf_counter() - start_s) / 10_000 * 1e6:.2f} us per token")
