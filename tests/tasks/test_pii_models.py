"""Redaction with what a model finds, from Python and on the command line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest

from headrace import LLM
from headrace.__main__ import main
from headrace.errors import InvalidRequest
from headrace.tasks.pii.model_entities import whole_words


@pytest.fixture(scope="module")
def tagger() -> Iterator[LLM]:
    with LLM("tagger", backend="numpy", cache_dir=None) as model:
        yield model


def test_names_and_patterns_together(tagger: LLM) -> None:
    text = "Angela Merkel wrote to a@x.org from Berlin."
    [done] = tagger.redact(text)
    labels = {one.label for one in done.entities}
    assert "EMAIL_ADDRESS" in labels and labels & {"PERSON", "LOCATION"}
    assert "a@x.org" not in done.text
    assert tagger.restore(done.text, done.vault) == text
    assert all(text[one.start : one.end] == one.text for one in done.entities)


def test_only_what_is_asked_for(tagger: LLM) -> None:
    [done] = tagger.redact("Angela Merkel wrote to a@x.org", entities=["EMAIL_ADDRESS"])
    assert done.text == "Angela Merkel wrote to <EMAIL_ADDRESS_1>"


def test_names_and_operators_of_a_model(tagger: LLM) -> None:
    operators = {"PERSON": "mask", "of its own": "keep"}
    [done] = tagger.redact("Angela Merkel wrote to a@x.org", entities=["PERSON"], operators=operators)
    assert done.text == "************* wrote to a@x.org"


def test_a_model_that_finds_no_entities_finds_no_names() -> None:
    with (
        LLM("embed", backend="numpy", cache_dir=None) as embed,
        pytest.raises(InvalidRequest, match="name a model that finds entities"),
    ):
        embed.redact("Angela Merkel", entities=["PERSON"])


def test_a_label_of_a_program_is_no_name(tagger: LLM) -> None:
    """The tagger takes "cash_withdrawal_ch" for a person."""
    [alone, within] = tagger.redact(["cash_withdrawal_charge", "Angela Merkel: cash_withdrawal_charge"])
    assert alone.text == "cash_withdrawal_charge"
    assert within.text.endswith(" cash_withdrawal_charge") and "Merkel" not in within.text
    [person] = tagger.redact("ask peter_miller please")
    assert "miller" not in person.text


@pytest.mark.parametrize(
    ("text", "found", "whole"),
    [
        ("to Peterson", (3, 8), (3, 11)),  # no half of a word is left
        ("Dr.Merkel's", (4, 8), (3, 9)),
        ("cash_withdrawal_charge", (0, 18), None),
        ("ask_peter_miller", (4, 16), (4, 16)),
        ("Cash_withdrawal_charge", (0, 18), (0, 22)),
        ("我叫王小明", (2, 5), (2, 5)),
        ("x" * 200, (100, 110), (100, 110)),
    ],
)
def test_findings_end_with_words(text: str, found: tuple[int, int], whole: tuple[int, int] | None) -> None:
    assert whole_words(text, *found) == whole


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*flags: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"mail a@x.org\n")))
        monkeypatch.setattr(sys, "argv", ["headrace", "redact", "-", *flags])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    assert run() == "mail <EMAIL_ADDRESS_1>\n"
    assert run("--operator", "mask") == "mail *******\n"
    found = json.loads(run("--json"))
    assert found["vault"] == {"<EMAIL_ADDRESS_1>": "a@x.org"}
