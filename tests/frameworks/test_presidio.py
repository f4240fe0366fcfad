"""Presidio's own types and engines: they read what /analyze and /anonymize answer, and say the same."""

from __future__ import annotations

from typing import Any

import pytest
from in_process import Running

REASON = "make test-frameworks installs it"
analyzer = pytest.importorskip("presidio_analyzer", reason=REASON)
anonymizer = pytest.importorskip("presidio_anonymizer", reason=REASON)
TEXT = "Write to ann@example.org or pay by card 4111 1111 1111 1111, IBAN DE89 3704 0044 0532 0130 00."


def post(server: Running, path: str, body: Any) -> Any:
    reply = server.http().post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_its_recognizers_find_the_same(encoders: Running) -> None:
    recognizers = pytest.importorskip("presidio_analyzer.predefined_recognizers", reason=REASON)
    body = {"text": TEXT, "language": "en", "score_threshold": 0.5}
    found = [analyzer.RecognizerResult.from_json(one) for one in post(encoders, "/analyze", body)]
    ours = {(one.entity_type, one.start, one.end) for one in found}
    for name in ("EmailRecognizer", "CreditCardRecognizer", "IbanRecognizer"):
        one = getattr(recognizers, name)()
        results = one.analyze(TEXT, one.supported_entities, None)
        assert results
        assert {(it.entity_type, it.start, it.end) for it in results if it.score >= 0.5} <= ours, name


def test_its_requests_are_read(encoders: Running) -> None:
    pattern = analyzer.Pattern(name="zip", regex=r"\b\d{5}\b", score=0.9)
    recognizer = analyzer.PatternRecognizer("ZIP", patterns=[pattern], context=["zip"])
    body = {
        "text": "zip 10023, a@x.org",
        "language": "en",
        "score_threshold": 0.5,
        "return_decision_process": True,
        "correlation_id": "1",
        "ad_hoc_recognizers": [recognizer.to_dict()],
        "allow_list": ["a@x.org"],
        "allow_list_match": "exact",
        "regex_flags": 26,
    }
    asked = analyzer.AnalyzerRequest(body)  # as its server reads it
    assert asked.ad_hoc_recognizers[0].supported_entities == ["ZIP"]
    [found] = post(encoders, "/analyze", body)
    one = analyzer.RecognizerResult.from_json(found)
    assert (one.entity_type, one.start, one.end) == ("ZIP", 4, 9)
    assert found["analysis_explanation"]["pattern"]


@pytest.mark.parametrize(
    "operators",
    [
        {},
        {"DEFAULT": {"type": "replace", "new_value": "<X>"}, "EMAIL_ADDRESS": {"type": "redact"}},
        {"CREDIT_CARD": {"type": "mask", "masking_char": "*", "chars_to_mask": 12, "from_end": False}},
        {"DEFAULT": {"type": "keep"}},
    ],
)
def test_its_engine_anonymizes_the_same(encoders: Running, operators: dict[str, Any]) -> None:
    config = pytest.importorskip("presidio_anonymizer.entities", reason=REASON)
    found = post(encoders, "/analyze", {"text": TEXT, "language": "en", "score_threshold": 0.9})
    kept = [one for one in found if one["entity_type"] in ("EMAIL_ADDRESS", "CREDIT_CARD", "IBAN_CODE")]
    reply = post(encoders, "/anonymize", {"text": TEXT, "analyzer_results": kept, "anonymizers": operators})
    made = {
        name: config.OperatorConfig(fields["type"], {k: v for k, v in fields.items() if k != "type"})
        for name, fields in operators.items()
    }
    results = [analyzer.RecognizerResult.from_json(one) for one in kept]
    theirs = anonymizer.AnonymizerEngine().anonymize(TEXT, results, made)
    assert reply["text"] == theirs.text
    ours = [
        (one["start"], one["end"], one["entity_type"], one["text"], one["operator"]) for one in reply["items"]
    ]
    assert ours == [(one.start, one.end, one.entity_type, one.text, one.operator) for one in theirs.items]
