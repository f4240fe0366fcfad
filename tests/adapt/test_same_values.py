"""What a model finds in one text of a conversation is replaced in all of them, by one placeholder."""

from __future__ import annotations

import json
import re
from pathlib import Path

from learning import ask, learning_server, settled

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.tasks.pii.analyzer import Analyzer
from headrace.tasks.pii.recognizer import RecognizerResult
from headrace.tasks.pii.redaction import Redactor
from headrace.tasks.pii.same_values import everywhere

SAID = {
    "I want to go to Pleasanton": "Pleasanton",
    "Find me a sushi place in Alameda.": "Alameda",
    "What movies are being shown in Milpitas?": "Milpitas",
    "In Sunnyvale please.": "Sunnyvale",
}


def finding(text: str, value: str, label: str) -> RecognizerResult:
    start = text.rindex(value)
    return RecognizerResult(start, start + len(value), label, 0.9, "m", "", 0.9, None)


def redacted(texts: list[str], *found: tuple[int, str, str]) -> list[str]:
    models: dict[str, list[RecognizerResult]] = {}
    for place, value, label in found:
        models.setdefault(texts[place], []).append(finding(texts[place], value, label))
    redactor, everything = Redactor(Analyzer(("CREDIT_CARD",))), everywhere(texts, models)
    return [redactor.redact(one, everything.get(one, ())).text for one in texts]


def test_values_are_found_wherever_they_stand_as_whole_words() -> None:
    texts = ["From Ann Arbor, MI to Ann.", '{"to": ["Ann", "Ann Arbor"], "by": "Annex"}', "Anna said: Ann"]
    found = redacted(texts, (0, "Ann Arbor", "LOCATION"), (2, "Ann", "PERSON"))
    assert found == [
        "From <LOCATION_1>, MI to <PERSON_1>.",
        '{"to": ["<PERSON_1>", "<LOCATION_1>"], "by": "Annex"}',
        "Anna said: <PERSON_1>",
    ]


def test_a_value_has_one_label_and_marks_are_none_of_it() -> None:
    texts = ["In Oslo.", '{"place": ["Oslo"]}', "It is AB, and AB again"]
    found = redacted(texts, (0, "Oslo", "PERSON"), (1, '": ["Oslo"', "LOCATION"), (2, "AB", "PERSON"))
    assert found[:2] == ["In <PERSON_1>.", '{"place": ["<PERSON_1>"]}']
    assert found[2] == "It is AB, and <PERSON_2> again", "what is short stands for much else"
    many = [" ".join(f"Name{number} Other" for number in range(20_000))]
    assert len(everywhere(many, {many[0]: [finding(many[0], "Name19999", "PERSON")]})[many[0]]) == 1


def test_answers_have_no_name_that_their_questions_lack(tmp_path: Path) -> None:
    model = load_model("tagger", EngineOptions(threads=1))
    system = "List the places as JSON. You work for Alameda Travels."
    with learning_server(
        tmp_path,
        lambda text: json.dumps({"places": [SAID[text]], "date": None}),
        model,
        detector="tagger",
        encoder="tagger",
    ) as (server, _, store):
        for text in SAID:
            ask(server, text, system)
        settled(store, len(SAID))
        assert len(store.tasks()) == 1, "what somebody says does not change the instructions"
        rows = store.database.query("SELECT question, answer FROM examples")
    model.close()
    hidden = 0
    for question, answer in rows:
        [place] = json.loads(str(answer))["places"]
        assert place in str(question), (question, answer)
        hidden += re.fullmatch(r"<\w+_\d+>", place) is not None
    assert hidden >= 2
