"""Personal data over HTTP: /v1/redact and Presidio's endpoints."""

from __future__ import annotations

import importlib
import threading
from typing import Any

import pytest
from in_process import Running

from headrace.tasks.task_limits import MAX_SEARCHED


def post(server: Running, path: str, body: Any, status: int = 200) -> Any:
    reply = server.http().post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


def test_redact(server: Running) -> None:
    body = {"input": ["mail a@x.org", "é 4111 1111 1111 1111, a@x.org"], "return_vault": True}
    found = post(server, "/v1/redact", body)
    assert [one["text"] for one in found["data"]] == [
        "mail <EMAIL_ADDRESS_1>",
        "é <CREDIT_CARD_1>, <EMAIL_ADDRESS_1>",
    ]
    assert found["data"][1]["index"] == 1
    assert found["data"][1]["entities"][0] == {
        "text": "4111 1111 1111 1111", "label": "CREDIT_CARD", "start": 2, "end": 21, "score": 1.0,
    }  # fmt: skip
    assert found["vault"] == {"<EMAIL_ADDRESS_1>": "a@x.org", "<CREDIT_CARD_1>": "4111 1111 1111 1111"}
    assert "vault" not in post(server, "/v1/redact", {"input": "x"})
    cards = post(server, "/v1/redact", body | {"labels": ["CREDIT_CARD"]})
    assert cards["data"] == post(server, "/v1/redact", body | {"entities": ["CREDIT_CARD"]})["data"]
    assert cards["data"][0]["text"] == "mail a@x.org"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "x", "labels": ["CREDIT_CARD"], "entities": []}, "labels"),
        ({"input": "x", "labels": ["NO_SUCH"]}, "labels"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": [1]}, "input"),
        ({"input": "x", "entities": ["EMAIL"]}, "entities"),
        ({"input": "x", "threshold": 2}, "threshold"),
        ({"input": "x", "operators": {"DEFAULT": "encrypt"}}, "operators"),
        ({"input": "x", "operators": {"DEFAULT": {"type": "mask", "masking_char": ""}}}, "operators"),
        ({"input": "x", "label": []}, "label"),
        ({"input": "a@x.org", "vault": {f"<EMAIL_ADDRESS_{'n' * 300}>": "a@x.org"}}, "vault"),
    ],
)  # fmt: skip
def test_bad_redactions(server: Running, body: Any, param: str) -> None:
    assert post(server, "/v1/redact", body, 400)["error"]["param"].startswith(param)


@pytest.mark.parametrize("number", ["9" * 200, "²", "x"])
def test_strange_numbers_in_a_vault(server: Running, number: str) -> None:
    body = {"input": "mail b@x.org", "vault": {f"<EMAIL_ADDRESS_{number}>": "a@x.org"}}
    assert post(server, "/v1/redact", body)["data"][0]["text"] == "mail <EMAIL_ADDRESS_1>"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/redact", {"input": "Ann", "entities": ["PERSON"]}),
        ("/v1/redact", {"input": "x", "entities": []}),
        ("/v1/redact", {"input": "x", "operators": {"EMAIL": "mask"}}),
        ("/analyze", {"text": "Ann", "language": "en", "entities": ["PERSON", "EMAIL_ADDRESS"]}),
    ],
)
def test_what_nothing_finds_here_is_refused(server: Running, path: str, body: Any) -> None:
    error = post(server, path, body, 400)["error"]
    assert error["param"] in ("entities", "operators")


def test_a_generator_finds_no_entities(server: Running) -> None:
    error = post(server, "/v1/redact", {"input": "x", "model": "fake/model"}, 400)["error"]
    assert "cannot find entities" in error["message"]


def test_analyze_as_presidio_does(server: Running) -> None:
    text = "My phone number is 212-555-5555 and a@x.org"
    found = post(server, "/analyze", {"text": text, "language": "en", "score_threshold": 0.4})
    assert [(one["entity_type"], text[one["start"] : one["end"]]) for one in found] == [
        ("PHONE_NUMBER", "212-555-5555"),
        ("EMAIL_ADDRESS", "a@x.org"),
    ]
    assert found[0]["score"] == pytest.approx(0.85)
    assert found[0]["analysis_explanation"] is None
    assert found[0]["recognition_metadata"]["recognizer_name"] == "PhoneNumberRecognizer"
    body = {
        "text": [text, "x"],
        "language": "en",
        "entities": ["PHONE_NUMBER"],
        "return_decision_process": True,
    }
    [[why, *_], nothing] = post(server, "/analyze", body)
    assert nothing == [] and why["analysis_explanation"]["supportive_context_word"] == "phone"


def test_ad_hoc_recognizers_and_allow_list(server: Running) -> None:
    recognizer = {
        "name": "Zip code", "supported_language": "en", "supported_entity": "ZIP", "context": ["zip"],
        "patterns": [{"name": "zip", "regex": r"(\b\d{5}(?:\-\d{4})?\b)", "score": 0.01}],
    }  # fmt: skip
    titles = {"supported_entity": "TITLE", "deny_list": ["Mr.", "Mrs."]}
    body = {
        "text": "Mr. X, zip 10023, a@x.org", "language": "en", "score_threshold": 0.35,
        "ad_hoc_recognizers": [recognizer, titles], "allow_list": ["a@x.org"],
    }  # fmt: skip
    found = post(server, "/analyze", body)
    assert [one["entity_type"] for one in found] == ["TITLE", "ZIP"]
    bomb = recognizer | {"patterns": [{"name": "b", "regex": "(?:a?){900}a{900}", "score": 1}]}
    body |= {"text": "a" * 20_000, "ad_hoc_recognizers": [bomb]}
    error = post(server, "/analyze", body, 400)["error"]
    assert error["param"] == "ad_hoc_recognizers"


LONG_PATTERN = {"regex": "x", "score": 1, "name": "n" * 300}
LONG_NAME = {"supported_entity": "X", "deny_list": ["x"], "name": "n" * 300}  # it would be in every result


def test_analyze_refuses(server: Running) -> None:
    for more in (
        {"language": "english"},
        {"language": "en", "entities": ["X"]},
        {"language": "en", "lang": 1},
        {"language": "en", "ad_hoc_recognizers": [LONG_NAME]},
        {"language": "en", "ad_hoc_recognizers": [LONG_NAME | {"name": "x", "patterns": [LONG_PATTERN]}]},
        {},
    ):
        post(server, "/analyze", {"text": "x"} | more, 400)


def test_anonymize_as_presidio_does(server: Running) -> None:
    text = "hello world, my name is Jane Doe. My number is: 034453334"
    body = {
        "text": text,
        "anonymizers": {
            "DEFAULT": {"type": "replace", "new_value": "ANONYMIZED"},
            "PHONE_NUMBER": {"type": "mask", "masking_char": "*", "chars_to_mask": 4, "from_end": True},
        },
        "analyzer_results": [
            {"start": 24, "end": 32, "score": 0.8, "entity_type": "NAME"},
            {"start": 24, "end": 28, "score": 0.8, "entity_type": "FIRST_NAME"},
            {"start": 48, "end": 57, "score": 0.95, "entity_type": "PHONE_NUMBER"},
        ],
    }
    found = post(server, "/anonymize", body)
    assert found["text"] == "hello world, my name is ANONYMIZED. My number is: 03445****"
    assert found["items"] == [
        {"start": 50, "end": 59, "entity_type": "PHONE_NUMBER", "text": "03445****", "operator": "mask"},
        {"start": 24, "end": 34, "entity_type": "NAME", "text": "ANONYMIZED", "operator": "replace"},
    ]
    body |= {"anonymizers": None}
    assert "<NAME>" in post(server, "/anonymize", body)["text"]
    body |= {"analyzer_results": [{"start": 50, "end": 99, "entity_type": "X"}]}
    assert "from 50 to 99" in post(server, "/anonymize", body, 400)["error"]["message"]


def test_lists(server: Running) -> None:
    http = server.http()
    assert "US_SSN" in http.get("/supportedentities?language=en").json()
    assert "CreditCardRecognizer" in http.get("/recognizers").json()
    assert http.get("/supportedentities?lang=en").status_code == 400


def test_searches_run_in_threads_of_their_own(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the event loop nor the threads that read bodies wait for a text."""
    threads: list[str] = []

    def noting(target: str) -> None:
        work = getattr(importlib.import_module(target.rpartition(".")[0]), target.rpartition(".")[2])

        def noted(*arguments: Any, **more: Any) -> Any:
            threads.append(threading.current_thread().name)
            return work(*arguments, **more)

        monkeypatch.setattr(target, noted)

    for target in ("tasks.pii.redaction.resolved", "api.presidio.anonymize.resolved"):
        noting(f"headrace.{target}")
    for target in ("api.presidio.analyze.distinct", "tasks.pii.custom.compile_re2"):
        noting(f"headrace.{target}")
    http = server.http()
    custom = [{"supported_entity": "E", "patterns": [{"regex": "b", "score": 1}]}]
    for path, body in (
        ("/v1/redact", {"input": ["mail a@x.org", "b"]}),
        ("/analyze", {"text": ["a@x.org", "b"], "language": "en", "ad_hoc_recognizers": custom}),
        ("/anonymize", {"text": "ab", "analyzer_results": [{"start": 0, "end": 1, "entity_type": "A"}]}),
    ):
        http.post(path, json=body).raise_for_status()
    assert len(threads) == 6 and all(name.startswith("headrace-search") for name in threads), threads


@pytest.mark.parametrize(
    ("path", "field", "more"),
    [
        ("/v1/redact", "input", {}),
        ("/analyze", "text", {"language": "en"}),
        ("/anonymize", "text", {"analyzer_results": []}),
    ],
)
def test_long_texts_are_refused_by_name(server: Running, path: str, field: str, more: dict[str, Any]) -> None:
    reply = server.http().post(path, json={field: "x" * (MAX_SEARCHED + 1)} | more)
    assert reply.status_code == 400
    assert f"{field} has 2,000,001 characters, at most 2,000,000 are searched" in reply.text
