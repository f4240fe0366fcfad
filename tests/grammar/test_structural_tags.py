"""Structural tags: free text, tags within it, and their contents; nothing bypasses a trigger."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from test_grammar import GRAMMARS, TOKENS, TOOL, admits, encode, generate

from headrace.grammar.constraint import Constraint, GrammarError

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CLOSED = NUMBER | {"additionalProperties": False}
CALLS = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=add>", "schema": CLOSED, "end": "</function>"},
        {"begin": "<function=name>", "schema": {"enum": ["red", "green"]}, "end": "</function>"},
        {"begin": "[[", "schema": {"type": "boolean"}, "end": ""},
    ],
    "triggers": ["<function=", "[["],
}
TAG = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}
DIGITS = {"type": "tag", "begin": "<d>", "content": {"type": "regex", "pattern": "[0-9/]+"}, "end": "/d"}


def tag(**form: Any) -> Constraint:
    return Constraint("structural_tag", json.dumps({"type": "structural_tag", **form}))


def triggered(*tags: object, triggers: list[str], **more: bool) -> Constraint:
    return tag(format={"type": "triggered_tags", "tags": tags, "triggers": triggers, **more})


@pytest.mark.parametrize(
    ("constraint", "right", "wrong"),
    [
        (
            tag(**CALLS),
            [
                "",
                "no call at all <func [ ]",
                'well: <function=add>{"n": 3}</function>',
                'a<function=name>"red"</function> and [[true then <function=add>{"n": -1}</function>\n',
            ],
            [
                '<function=add>{"n": "x"}</function>',
                '<function=add>{"n": 3, "m": 1}</function>',
                "text <function=other>",
                "text <function=add>",
                '<function=name>{"n": 3}</function>',
                "[[maybe",
            ],
        ),
        (
            triggered(TAG, DIGITS, triggers=["<a>", "<d>"], at_least_one=True),
            ["<a>x</a>", "text <d>12/d more", "<a></a><a> < </a><d>1//d"],
            ["", "text", "<d>x/d", "<d>/d", "<a>x"],
        ),
        (
            triggered(DIGITS, triggers=["<d"], stop_after_first=True),
            ["", "text", "text <d>1/d"],
            ["<d>1/d more", "<d>1/d<d>1/d", "<d"],
        ),
        (
            triggered(DIGITS, triggers=["<d"], stop_after_first=True, at_least_one=True),
            ["<d>1/d", "x<d>1/d"],
            ["", "x", "<d>1/dx"],
        ),
        (
            tag(format={"type": "tags_with_separator", "tags": [TAG, DIGITS], "separator": ", "}),
            ["", "<a>x</a>", "<d>1/d, <a>, </a>, <d>2/d"],
            ["x", "<d>1/d,", "<d>1/d<d>1/d"],
        ),
        (
            tag(
                format={
                    "type": "sequence",
                    "elements": [
                        {"type": "const_string", "value": 'a "b"\n'},
                        {"type": "json_schema", "json_schema": CLOSED},
                        {"type": "or", "elements": [DIGITS, {"type": "const_string", "value": "!"}]},
                    ],
                }
            ),
            ['a "b"\n{"n": 1}!', 'a "b"\n{"n": 1}<d>12/d'],
            ['a "b"\n{"n": 1}', 'a "b"\n!', '{"n": 1}!'],
        ),
        (tag(format={"type": "any_text"}), ["", "x\ny"], []),
    ],
)
def test_what_a_tag_admits(constraint: Constraint, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert admits(constraint, text), text
    for text in wrong:
        assert not admits(constraint, text), text


def test_a_tag_that_is_a_special_token() -> None:
    """The token is the tag; its spelling as text is ordinary text."""
    one = {"type": "tag", "begin": "<tool>x", "content": {"type": "json_schema", "json_schema": NUMBER}}
    constraint = triggered({**one, "end": "<tool>"}, triggers=["<tool>"])
    inside = [*b"x", *encode('{"n": 1}')]
    assert admits(constraint, [*b"a ", TOOL, *inside, TOOL, *b" b"])
    assert admits(constraint, "no <tool> at all")
    for wrong in ([TOOL], [TOOL, *inside], [TOOL, *b"y"], [TOOL, *b'x{"n": "', TOOL]):
        assert not admits(constraint, wrong)


def test_after_reasoning() -> None:
    text = json.dumps(CALLS)
    constraint = Constraint("structural_tag", text, after="</think>")
    assert admits(constraint, '<function=??</think>\n<function=add>{"n": 3}</function>')
    assert not admits(constraint, "<function=??</think>\n<function=??")


def test_samples_match_their_tags() -> None:
    constraint = tag(**CALLS)
    calls = 0
    for seed in range(60):
        matcher = GRAMMARS.matcher(constraint)
        for token in encode("<function=") if seed % 2 else []:
            matcher.accept(token)
        rest = generate(matcher, random.Random(seed), forcing=bool(seed % 3), limit=120)
        text = ("<function=" if seed % 2 else "") + b"".join(TOKENS[token] for token in rest).decode(
            errors="replace"
        )
        for name, body in re.findall(r"<function=(.*?)>(.*?)</function>", text, re.DOTALL):
            value = json.loads(body)
            assert isinstance(value["n"], int) if name == "add" else value in ("red", "green")
            calls += 1
    assert calls > 5


@pytest.mark.parametrize(
    ("form", "cause"),
    [
        ({"structures": []}, "structures is missing, empty or no list"),
        ({"structures": CALLS["structures"]}, "triggers is missing"),
        ({**CALLS, "triggers": ["<function="]}, "begins with none of the triggers"),
        ({**CALLS, "triggers": ["<function=", "[[", "x"]}, "no tag begins with the trigger 'x'"),
        ({**CALLS, "triggers": ["<function=", "[[", "["]}, "is a part of another one"),
        ({**CALLS, "triggers": ["<function=", ""]}, "no text, or an empty one"),
        ({**CALLS, "triggers": ["a<tool>"]}, "special token after its beginning"),
        ({**CALLS, "color": 1}, "unknown member 'color'"),
        ({"structures": [{"begin": "a", "end": "b"}], "triggers": ["a"]}, "schema is missing"),
        (
            {
                "structures": [{"begin": "a", "schema": {"not": {"pattern": "b"}}, "end": ""}],
                "triggers": ["a"],
            },
            "keyword 'pattern'",
        ),
        ({"format": {"type": "grammar", "grammar": "root ::= x"}}, "type is 'grammar', it must be one of"),
        ({"format": {"type": "regex"}}, "pattern is missing"),
        ({"format": {"type": "regex", "pattern": "a", "excludes": ["b"]}}, "unknown member 'excludes'"),
        ({"format": []}, "format is missing or no object"),
        ({"format": {**DIGITS, "content": None}}, "content is missing"),
        ({"format": {"type": "sequence", "elements": [3]}}, "elements is missing or no object"),
        (
            {"format": {"type": "triggered_tags", "tags": [TAG], "triggers": ["<"], "at_least_one": 3}},
            "must be true or false",
        ),
    ],
)
def test_invalid_structural_tags_are_rejected(form: dict[str, Any], cause: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(cause)):
        GRAMMARS.matcher(tag(**form))


def test_too_much_is_refused() -> None:
    with pytest.raises(GrammarError, match="more than 512 tags"):
        GRAMMARS.matcher(triggered(*[DIGITS] * 513, triggers=["<d"]))
    many = [{"type": "regex", "pattern": f"[a-c]+x{index}"} for index in range(2000)]
    for kind in ("or", "sequence"):
        with pytest.raises(GrammarError, match="more than 512 patterns"):
            GRAMMARS.matcher(tag(format={"type": kind, "elements": many}))
    form: dict[str, Any] = {"type": "any_text"}
    for _ in range(70):
        form = {"type": "sequence", "elements": [form]}
    with pytest.raises(GrammarError, match="64 levels"):
        GRAMMARS.matcher(tag(format=form))
    with pytest.raises(GrammarError, match="64 levels"):
        GRAMMARS.matcher(tag(format={"type": "regex", "pattern": "(" * 70 + "a" + ")" * 70}))
