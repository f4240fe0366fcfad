"""Redaction: what is found, what takes its place, streams, hostile texts."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidRequest
from headrace.tasks.pii.analyzer import Analyzer
from headrace.tasks.pii.custom import CustomPattern, CustomRecognizer
from headrace.tasks.pii.redaction import Redactor, redact, restore
from headrace.tasks.pii.streaming import StreamingRedactor, StreamingRestorer

KEY = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA75iZ\nabcdefghijklmnopqrstuvwxyz0123\n"
    "-----END RSA PRIVATE KEY-----"
)
EXAMPLES = [
    ("CREDIT_CARD", "4111 1111 1111 1111"),
    ("CREDIT_CARD", "3782-822463-10005"),
    ("IBAN_CODE", "GB82 WEST 1234 5698 7654 32"),
    ("EMAIL_ADDRESS", "müller.o'neil+x@sub.example.co.uk"),
    ("URL", "https://example.com/a?b=c(d)"),
    ("IP_ADDRESS", "192.168.10.254"),
    ("IP_ADDRESS", "2001:db8::ff00:42:8329"),
    ("MAC_ADDRESS", "00:1A:2b:3C:4d:5E"),
    ("PHONE_NUMBER", "+49 30 1234567"),
    ("PHONE_NUMBER", "(212) 555-0123"),
    ("PHONE_NUMBER", "06 12 34 56 78"),
    ("US_SSN", "536-90-4399"),
    ("UK_NINO", "AB 12 34 56 C"),
    ("DE_TAX_ID", "36 574 261 809"),
    ("FR_NIR", "1 85 05 78 006 084 91"),
    ("ES_NIF", "12345678Z"),
    ("IT_FISCAL_CODE", "RCCMNL83S18D969H"),
    ("BR_CPF", "390.533.447-05"),
    ("SG_NRIC_FIN", "S1234567D"),
    ("IN_PAN", "ABCPE1234F"),
    ("KR_RRN", "900101-1234567"),
    ("CRYPTO", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"),
    ("CRYPTO", "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4"),
    ("API_KEY", "ghp_" + "a1B2" * 9),
    ("AWS_KEY", "AKIAIOSFODNN7EXAMPLE"),
    ("JWT", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig-na_ture"),
    ("PRIVATE_KEY", KEY),
]


@pytest.mark.parametrize(("entity", "text"), EXAMPLES, ids=lambda value: str(value)[:20])
def test_entities_are_found_and_put_back(entity: str, text: str) -> None:
    whole = f"It is {text}, says Ann."
    done = redact(whole)
    assert [(one.label, one.text) for one in done.entities] == [(entity, text)]
    assert done.text == f"It is <{entity}_1>, says Ann."
    assert restore(done.text, done.vault) == whole


@pytest.mark.parametrize(
    "text",
    ["4111 1111 1111 1112", "GB82 WEST 1234 5698 7654 33", "std::vector<int>", "12:30:45",
     "version 1.2.3.4.5",
     "123456789", "2024-10-12", "a@b", "call 12", "000-12-3456", "room 4711, 3 chairs"],
)  # fmt: skip
def test_what_is_none(text: str) -> None:
    assert redact(text).entities == []


def test_context_decides_about_bare_numbers() -> None:
    assert redact("order 5551234567").entities == []
    [found] = redact("My phone number is 5551234567").entities
    assert found.label == "PHONE_NUMBER"
    [found] = redact("born on 12 March 1985 in Rome").entities
    assert (found.label, found.text) == ("DATE_OF_BIRTH", "12 March 1985")
    assert redact("built on 12 March 1985 in Rome").entities == []


def test_equal_values_have_equal_placeholders_across_texts() -> None:
    first, second = redact(["a@x.org, b@x.org", "b@x.org"])
    assert (first.text, second.text) == ("<EMAIL_ADDRESS_1>, <EMAIL_ADDRESS_2>", "<EMAIL_ADDRESS_2>")
    third = redact("c@x.org b@x.org", vault=first.vault)
    assert third.text == "<EMAIL_ADDRESS_3> <EMAIL_ADDRESS_2>"


@pytest.mark.parametrize(
    "vault",
    [
        {"<EMAIL_ADDRESS_999999999>": "b@x.org"},
        {"<EMAIL_ADDRESS_999999999>": "b@x.org", "<EMAIL_ADDRESS_1>": "c@x.org"},
        {"EMAIL_ADDRESS_1": "a@x.org"},
        {"<EMAIL_ADDRESS_x>": "a@x.org"},
        {"<email_address_7>": "a@x.org"},
    ],
)
def test_a_vault_that_cannot_go_on_loses_nothing(vault: dict[str, str]) -> None:
    done = redact("mail a@x.org", vault=vault)
    assert restore(done.text, done.vault) == "mail a@x.org" != done.text
    assert vault.items() <= done.vault.items()


@pytest.mark.parametrize("label", ["employee id", "1ID", "E" * 80, "ö", "_", "MAIL"])
def test_any_label_has_placeholders_that_are_restored(label: str) -> None:
    custom = CustomRecognizer(label, [CustomPattern(regex=r"E-\d+", score=0.9)])
    done = redact("of E-1 and E-2, E-1", recognizers=[custom])
    assert [one.label for one in done.entities] == [label] * 3 and "E-" not in done.text
    assert restore(done.text, done.vault) == "of E-1 and E-2, E-1"
    assert redact("E-2", recognizers=[custom], vault=done.vault).vault == done.vault


@pytest.mark.parametrize("before", ["x" * 4090, "x" * 4096, "-----BEGIN X-----" + "y " * 8180])
def test_a_stream_cuts_no_placeholder(before: str) -> None:
    text = f"{before}<EMAIL_ADDRESS_1> a@x.org"
    stream, first = StreamingRedactor(Redactor(Analyzer())), len(before)
    done = "".join(map(stream.feed, [text[: first + 8], *text[first + 8 :]]))
    assert done + stream.finish() == redact(text).text


def test_text_that_looks_like_a_placeholder_is_restored_as_it_was() -> None:
    text = "<EMAIL_ADDRESS_1> wrote to a@x.org"
    done = redact(text)
    assert done.text == "<TEXT_1> wrote to <EMAIL_ADDRESS_1>"
    assert restore(done.text, done.vault) == text


def test_operators() -> None:
    text = "a@x.org 4111111111111111 +14155550123 10.0.0.1 AKIAIOSFODNN7EXAMPLE"
    operators = {
        "EMAIL_ADDRESS": "redact",
        "CREDIT_CARD": {"type": "mask", "chars_to_mask": 12},
        "PHONE_NUMBER": {"type": "hash", "key": "k"},
        "IP_ADDRESS": "keep",
        "DEFAULT": {"type": "replace", "new_value": "[gone]"},
    }
    done = redact(text, operators=operators)
    assert re.fullmatch(r" \*{12}1111 [0-9a-f]{64} 10\.0\.0\.1 \[gone\]", done.text)
    assert done.vault == {} and redact(text, operators=operators).text == done.text
    with pytest.raises(InvalidRequest, match="encrypt is not offered"):
        redact(text, operators={"DEFAULT": {"type": "encrypt", "key": "k"}})
    with pytest.raises(InvalidRequest, match="operator"):
        redact(text, operators={"DEFAULT": {"type": "mask", "maskingchar": "x"}})


@pytest.mark.parametrize("value", [float("nan"), -0.1, 1.5])
def test_bad_arguments(value: float) -> None:
    with pytest.raises(InvalidRequest, match="threshold"):
        redact("x", threshold=value)
    with pytest.raises(InvalidRequest, match="unknown entity 'EMAIL'"):
        redact("x", entities=["EMAIL"])


def test_look_alikes_and_characters_that_show_nothing() -> None:
    card = "４１１１-1111\u200b\u20111111\u2009１１１１"
    done = redact(f"Карта {card} конец")
    assert [(one.label, one.text) for one in done.entities] == [("CREDIT_CARD", card)]
    keys = "4\ufe0f\u20e31\ufe0f\u20e31\ufe0f\u20e31\ufe0f\u20e3 1111\x00 1111\x7f 11\U000e010111"
    assert redact(keys).text == "<CREDIT_CARD_1>"
    for hidden in ("\x00", "\x08", "\x7f", "\x9f", "\ufe0f", "\u034f", "\u3164", "\U000e0061"):
        assert redact(f"to ann@exam{hidden}ple.org").text == "to <EMAIL_ADDRESS_1>"
    arabic = "\u202bبطاقة ٤١١١١١١١١١١١١١١١\u202c"
    [found] = redact(arabic).entities
    assert found.label == "CREDIT_CARD" and arabic[found.start : found.end] == found.text
    [found] = redact("😀\ud800 a@x.org").entities
    assert (found.start, found.end) == (3, 10)


def test_overlaps_leave_nothing_uncovered() -> None:
    done = redact("see https://x.com/?mail=ann@x.org&a=1")
    assert "ann" not in done.text and "x.com" not in done.text
    assert all(a.end <= b.start for a, b in zip(done.entities, done.entities[1:], strict=False))
    assert restore(done.text, done.vault) == "see https://x.com/?mail=ann@x.org&a=1"


def test_allow_list() -> None:
    assert redact("a@x.org b@x.org", allow_list=["a@x.org"]).text == "a@x.org <EMAIL_ADDRESS_1>"


PIECE = st.sampled_from(
    [text for _, text in EXAMPLES]
    + [" ", "\n", "  ", "\t", "word", "12", "phone ", "-", "-----BEGIN "]
    + ["-----END X-----", "<URL_1>", "\0", "é", "\u200b", "٤"]
    + ["x" * 600, "1 " * 300, "y" * 5000]
) | st.text(max_size=5)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(PIECE, max_size=12), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_streams_equal_whole_texts_however_they_are_cut(pieces: list[str], sizes: list[int]) -> None:
    text = "".join(pieces)
    whole = redact(text)
    stream = StreamingRedactor(Redactor(Analyzer()))
    out, place, turn = [], 0, 0
    while place < len(text):
        size = sizes[turn % len(sizes)] * (1 if len(text) < 2000 else 97)
        out.append(stream.feed(text[place : place + size]))
        place, turn = place + size, turn + 1
    assert "".join(out) + stream.finish() == whole.text
    assert stream.entities == whole.entities
    restorer = StreamingRestorer(whole.vault)
    back = "".join([restorer.feed(whole.text[at : at + 3]) for at in range(0, len(whole.text), 3)])
    assert back + restorer.finish() == text


def test_a_stream_holds_back_no_more_than_an_open_match() -> None:
    stream = StreamingRedactor(Redactor(Analyzer()))
    assert stream.feed("Hello Ann, how are ") == "Hello Ann, how "
    assert stream.feed("you") == "are "
    assert stream.feed(" paying? 4111 1111 1111 1111") == "you "
    assert stream.feed(" and th") == "paying? <CREDIT_CARD_1> and "
    for _ in range(100):
        stream.feed("9 9 9 9 9 9 9 9 ")
        assert stream.held <= 600


def test_custom_patterns_in_streams_do_not_depend_on_the_cut() -> None:
    def streamed(size: int) -> str:
        custom = CustomRecognizer("TICKET", [CustomPattern(regex=r"T-\d+ ?\w*", score=0.9)])
        stream = StreamingRedactor(Redactor(Analyzer(custom=[custom])))
        text = "see T-1 and T-22 now T-333"
        return (
            "".join([stream.feed(text[at : at + size]) for at in range(0, len(text), size)]) + stream.finish()
        )

    assert len({streamed(size) for size in (1, 2, 3, 7, 100)}) == 1


@pytest.mark.parametrize(
    "unit",
    [
        "a@b.c",
        "1",
        "1 ",
        "4111-",
        "a.",
        ":",
        "f:",
        "eyJaaaaaaaaa-",
        "-----BEGIN ",
        "<",
        "+1",
        "www.",
        "DE89 ",
    ],
)
def test_a_megabyte_takes_linear_time(unit: str) -> None:
    def seconds(size: int) -> float:
        began_s = time.perf_counter()
        redact((unit * size)[:size])
        return time.perf_counter() - began_s

    seconds(1000)
    small = seconds(1 << 16)
    assert seconds(1 << 19) < 8 * small * 6 + 1  # quadratic: 64 times


@pytest.mark.parametrize("regex", ["", "x*", r"\b", "$", "^", "(?:)"])
@pytest.mark.parametrize("text", ["abc", "", "a" * 511, "a" * 512, "a" * 1025])
def test_searches_for_empty_matches_end(regex: str, text: str) -> None:
    hits = CustomRecognizer("X", [CustomPattern(regex=regex)]).hits(text.encode())
    assert next(hits, None) is None


def test_matches_at_the_end_of_a_text_are_found() -> None:
    for text in ("ab", "b" + "a" * 510 + "b", "a" * 512 + "b"):
        hits = CustomRecognizer("X", [CustomPattern(regex="b|x*")]).hits(text.encode())
        assert [(one.start, one.end) for one in hits][-1] == (len(text) - 1, len(text))


def test_ten_thousand_entities() -> None:
    text = "".join(f"u{number}@x.org " for number in range(10_000))
    done = redact(text)
    assert len(done.entities) == 10_000 and restore(done.text, done.vault) == text


@pytest.mark.parametrize("regex", ["(a|a)*b", "(.*)*x", "(?:a?){500}a{500}", ".*.*.*.*=", "a|.*b"])
def test_regex_bombs_end_or_are_refused(regex: str) -> None:
    custom = CustomRecognizer("X", [CustomPattern(regex=regex, score=0.9)])
    began_s = time.perf_counter()
    try:
        redact("a" * 200_000, recognizers=[custom], entities=["X"])
    except InvalidRequest as error:
        assert "steps" in error.message
    assert time.perf_counter() - began_s < 20


@pytest.mark.parametrize("regex", ["(", r"(?=a)", r"(a)\1", "x" * 1001, "\ud800"])
def test_patterns_that_cannot_be_searched(regex: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be used"):
        CustomRecognizer("X", [CustomPattern(regex=regex)])


def test_names_are_not_looked_for_without_a_model() -> None:
    with pytest.raises(InvalidRequest, match=r"PERSON .* is found by models, not by patterns") as caught:
        redact("Ann", entities=["EMAIL_ADDRESS", "PERSON"])
    assert caught.value.param == "entities"
    titles = CustomRecognizer("PERSON", words=["Ann"])
    assert redact("Ann", entities=["PERSON"], recognizers=[titles]).text == "<PERSON_1>"
    with pytest.raises(InvalidRequest, match="entities is empty"):
        redact("a@x.org", entities=[])


def test_operators_without_effect_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="unknown entity 'EMAIL_ADRESS': did you mean 'EMAIL_ADDRESS'"):
        redact("a@x.org", operators={"EMAIL_ADRESS": "mask"})
    with pytest.raises(InvalidRequest, match="the operator 'hide' is none of replace, redact, mask"):
        redact("a@x.org", operators={"DEFAULT": "hide"})
