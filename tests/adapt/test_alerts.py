"""Alerts: told once, signed, tried again, and sent to the configured URL alone."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from learning import fill, words

from headrace.adapt.decisions import alerts
from headrace.adapt.decisions.alerts import MAX_ATTEMPTS, Webhook, latest_alerts, raise_alert
from headrace.adapt.decisions.promotion import start_shadow
from headrace.adapt.decisions.shadow import catch_up, check_drift
from headrace.adapt.schema import open_adapt
from headrace.adapt.students.ladder import task_examples
from headrace.adapt.students.registry import Registry
from headrace.adapt.students.training import train
from headrace.adapt.traffic.examples import ExampleStore
from headrace.adapt.traffic.tasks import embed_examples
from headrace.config.adapt_settings import AdaptSettings, read_adapt
from headrace.errors import UsageError

SETTINGS = AdaptSettings(margin=0.05)


class Receiver:
    """A real server that keeps what it gets, and answers as it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append((self.path, dict(self.headers.items()), body))
                status, headers = receiver.answers.pop(0) if receiver.answers else (204, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *parts: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def store() -> Iterator[ExampleStore]:
    database = open_adapt(None)
    yield ExampleStore(database)
    database.close()


def test_an_alert_is_delivered_once_signed_and_tried_again(
    store: ExampleStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    monkeypatch.setattr(alerts, "FIRST_WAIT_S", 0.0)
    settings = AdaptSettings(webhook=receiver.url, webhook_secret_env="HOOK_SECRET")
    assert raise_alert(store.database, "ready", "t-1", "s-1", "it is ready")
    assert not raise_alert(store.database, "ready", "t-1", "s-1", "it is ready, again")
    receiver.answers = [(500, {}), (302, {"location": f"{receiver.url}/elsewhere"})]
    for _ in range(5):  # a sender of a server that was started again knows what is delivered
        asyncio.run(Webhook(store.database, settings).deliver())
    assert [path for path, _, _ in receiver.got] == ["/hook"] * 3
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 1
    _, headers, body = receiver.got[-1]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(b"s3cret", signed, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    told = json.loads(body)
    assert told["type"] == "adapt.ready" and told["data"]["text"] == "it is ready"
    [kept] = latest_alerts(store.database)
    assert kept.delivered_s is not None and kept.attempts == 3


def test_a_webhook_that_is_not_there_is_given_up(
    store: ExampleStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(alerts, "FIRST_WAIT_S", 0.0)
    settings = AdaptSettings(webhook="http://127.0.0.1:9/hook", webhook_secret_env="HOOK_SECRET")
    with pytest.raises(UsageError, match="HOOK_SECRET"):
        Webhook(store.database, settings)
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    raise_alert(store.database, "drift", "t-1", "s-1", "it has changed")
    for _ in range(MAX_ATTEMPTS + 3):
        asyncio.run(Webhook(store.database, settings).deliver())
    [kept] = latest_alerts(store.database)
    assert kept.attempts == MAX_ATTEMPTS and kept.delivered_s is None
    assert "given up" in caplog.text


@pytest.mark.parametrize(
    "url", ["ftp://a/b", "http://", "file:///etc/passwd", "http://u:p@a/b", "http://a:x/", "a"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"adapt\.webhook is no URL"):
        read_adapt({"webhook": url, "webhook_secret_env": "X"})
    with pytest.raises(UsageError, match="webhook_secret_env"):
        read_adapt({"webhook": "https://example.com/hook"})


def test_a_student_that_is_ready_and_traffic_that_changes_are_told_once(
    store: ExampleStore, caplog: pytest.LogCaptureFixture
) -> None:
    task = fill(store, 250)
    train(store, task, SETTINGS, words)
    registry, student = Registry(store.database), start_shadow(store, task)
    fill(store, 300, first=1000)
    assert catch_up(store, student, words) == "ready"
    catch_up(store, student, words)
    fill(store, 60, first=3000)
    embed_examples(store.database, "embed", words)
    row = registry.student(task, "ready")
    assert not check_drift(store, row, task_examples(store.database, task, "embed", after=row.last_example))
    fill(store, 60, first=4000, answer="new label")
    embed_examples(store.database, "embed", words)
    for _ in range(2):
        later = task_examples(store.database, task, "embed", after=row.last_example)
        assert check_drift(store, row, later[-100:])
    kinds = sorted(one.kind for one in latest_alerts(store.database))
    assert kinds == ["drift", "ready"] and caplog.text.count("lets it answer") == 1
