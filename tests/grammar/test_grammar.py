"""Constraints, their limits, and matchers over a vocabulary of bytes and a few longer tokens."""

from __future__ import annotations

import json
import random
import re
import threading

import pytest

from headrace.errors import InvalidRequest
from headrace.grammar import compile as grammar_compile
from headrace.grammar.constraint import Constraint, GrammarError, choice_constraint, schema_constraint
from headrace.grammar.json_schema import schema_text
from headrace.grammar.matcher import Grammars, Matcher
from headrace.grammar.patterns import FORMAT_PATTERNS
from headrace.grammar.token_table import TokenTable

WORDS = [b"</s>", b"<tool>", b"</think>", b"name", b'": "', b"red", b"gre", b"en", b'{"', b"\n\n"]
TOKENS = [*(bytes([byte]) for byte in range(256)), *WORDS]
EOS, TOOL = 256, 257


def encode(text: str) -> list[int]:
    """Longest match first, but no special tokens."""
    data, ids = text.encode(), list[int]()
    by_length = sorted(range(258, len(TOKENS)), key=lambda token: -len(TOKENS[token]))
    while data:
        token = next((token for token in by_length if data.startswith(TOKENS[token])), data[0])
        ids.append(token)
        data = data[len(TOKENS[token]) :]
    return ids


def new_grammars() -> Grammars:
    table = TokenTable(
        tokens=TOKENS, special_ids=frozenset({EOS, TOOL}), eos_ids=frozenset({EOS}), encode=encode
    )
    return Grammars(lambda: table)


GRAMMARS = new_grammars()


def allowed(matcher: Matcher) -> list[int]:
    mask = matcher.mask()
    return [token for token in range(len(TOKENS)) if mask[token // 32] >> (token % 32) & 1]


def admits(constraint: Constraint, text: str | list[int]) -> bool:
    matcher = GRAMMARS.matcher(constraint)
    for token in [*(encode(text) if isinstance(text, str) else text), EOS]:
        if matcher.finished:
            return token == EOS
        if token not in allowed(matcher):
            return False
        if token != EOS:
            matcher.accept(token)
    return True


def generate(matcher: Matcher, rng: random.Random, *, forcing: bool, limit: int = 200) -> list[int]:
    """Tokens drawn from the masks, as the engine would."""
    tokens: list[int] = []
    while len(tokens) < limit and not matcher.finished:
        choices = allowed(matcher)
        token = rng.choice(choices)
        if token == EOS:
            break
        tokens.append(token)
        matcher.accept(token)
        while forcing and (forced := matcher.forced) is not None:
            rng.choice([forced])
            tokens.append(forced)
            matcher.accept(forced)
    return tokens


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "size": {"enum": ["red", "green"]},
        "list": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name", "size", "list"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("constraint", "right", "wrong"),
    [
        (choice_constraint(["red", "green", "greener"]), ["red", "green", "greener"], ["gree", "redd", ""]),
        (choice_constraint(['"q"\n', " é"]), ['"q"\n', " é"], ['"q"', "é"]),
        (Constraint("regex", r"a/b\/c\d{2}"), ["a/b/c12"], ["a/b/c1", "a/b/c123", "xa/b/c12"]),
        (Constraint("regex", "x\ny"), ["x\ny"], ["xy", "x\\ny"]),
        (Constraint("lark", 'start: "<" NAME ">"\nNAME: /[a-z]+/'), ["<name>"], ["<>", "<a> "]),
        (Constraint("ebnf", 'root ::= "a" [0-9]+ | "b"'), ["a12", "b"], ["a", "ab"]),
        (Constraint("json_object"), ['{"name": [1, {}]}', "{}", '{\n  "a": 1\n}'], ["[]", "{} ", "{,}"]),
        (schema_constraint(True), ["3", "null"], ["nul"]),
        (schema_constraint('{"const": null}'), ["null"], ["0"]),
    ],
    ids=lambda value: value.kind if isinstance(value, Constraint) else "",
)
def test_what_a_constraint_admits(constraint: Constraint, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert admits(constraint, text), text
    for text in wrong:
        assert not admits(constraint, text), text


def test_a_key_has_one_spelling() -> None:
    """An escaped name must not pass for an additional property."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "é\n": {"type": "integer"}}}
    for text in (
        '{"\\u0061": "x"}',
        '{"\\u00e9\\n": "x"}',
        '{"é\\u000a": "x"}',
        '{"é\\n": "x"}',
        '{"a": "x"}',
    ):
        assert not admits(schema_constraint(schema), text), text
    assert admits(schema_constraint(schema), '{"a": 1, "é\\n": 2, "b": "x"}')


def test_special_tokens_are_not_text() -> None:
    lark = Constraint("lark", "start: <tool> /[a-z<>]+/")
    assert admits(lark, [TOOL, *b"abc"])
    assert not admits(lark, "<tool>abc")
    assert not admits(lark, [TOOL, TOOL])


def test_schemas_inside_lark() -> None:
    grammar = Constraint("lark", "start: <tool> call\ncall: %json " + schema_text(SCHEMA))
    assert admits(grammar, [TOOL, *encode('{"name": "x", "size": "red", "list": []}')])
    assert not admits(grammar, [TOOL, *encode('{"name": "x"}')])


@pytest.mark.parametrize("forcing", [False, True])
def test_generated_json_matches_its_schema(forcing: bool) -> None:
    for seed in range(30):
        tokens = generate(GRAMMARS.matcher(schema_constraint(SCHEMA)), random.Random(seed), forcing=forcing)
        data = b"".join(TOKENS[token] for token in tokens)
        if len(tokens) < 200:
            value = json.loads(data)
            assert list(value) == ["name", "size", "list"]
            assert len(value["name"]) <= 5 and value["size"] in ("red", "green") and len(value["list"]) <= 3


def test_forcing_changes_no_token() -> None:
    for seed in range(30):
        one, other = (
            generate(GRAMMARS.matcher(schema_constraint(SCHEMA)), random.Random(seed), forcing=forcing)
            for forcing in (True, False)
        )
        assert one == other


def test_a_matcher_ends_where_nothing_can_follow() -> None:
    matcher = GRAMMARS.matcher(choice_constraint(["red"]))
    assert allowed(matcher) == [261] and not matcher.finished
    matcher.accept(261)
    assert matcher.finished and allowed(matcher) == [EOS]


@pytest.mark.parametrize("marked", [[258], [*b"</think>"], [*b"</th", *b"ink>\n"], [258, 265]])
def test_nothing_is_constrained_before_the_marker(marked: list[int]) -> None:
    matcher = GRAMMARS.matcher(Constraint("choice", '["red", "green"]', after="</think>"))
    for token in [*b"{any</thin", TOOL, *marked]:
        assert EOS not in allowed(matcher) or token == marked[-1]
        assert token in allowed(matcher)
        matcher.accept(token)
    assert set(allowed(matcher)) <= {*b"rg \n\t\r", 261, 262, 265}
    matcher.accept(262)
    assert matcher.forced is not None or allowed(matcher) == [*b"e", 263]


def test_the_grammar_may_begin_inside_the_markers_token() -> None:
    """`>{"` as one token: the marker ends and the object begins in it."""
    tokens = [*TOKENS, b'>{"', b">x"]
    table = TokenTable(tokens=tokens, special_ids=frozenset(), eos_ids=frozenset({EOS}), encode=encode)
    grammars = Grammars(lambda: table)
    for last, fits in ((266, True), (267, False)):
        matcher = grammars.matcher(Constraint("json_object", after="</think>"))
        for token in b"</think":
            matcher.accept(token)
        if fits:
            matcher.accept(last)
            matcher.accept(ord("a"))
        else:
            with pytest.raises(GrammarError, match="cannot be followed"):
                matcher.accept(last)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (
            schema_constraint({"properties": {"a": {"not": {"pattern": "x"}}}}),
            "keyword 'pattern' at #/properties/a is not supp",
        ),
        (schema_constraint({"type": "array", "items": {"not": {}}, "minItems": 1}), "is unsatisfiable"),
        (schema_constraint({"not": True}), "json_schema: no value matches the schema"),
        (
            schema_constraint({"if": {"pattern": "a"}, "then": False}),
            "keyword 'pattern' at #.* inside `not`",
        ),
        (
            schema_constraint({"items": {}, "uniqueItems": True}),
            "keyword 'uniqueItems' at # is suppor",
        ),
        (
            schema_constraint({"items": {"type": "stirng"}}),
            "keyword 'type' at #/items is 'stirng'",
        ),
        (schema_constraint({"minLength": -1}), "keyword 'minLength' at # is '-1', it must be a count"),
        (schema_constraint({"multipleOf": 0}), "keyword 'multipleOf' at # is 0, it must be more than 0"),
        (
            schema_constraint({"allOf": [{"multipleOf": 99999989}, {"multipleOf": 99999971}]}),
            "keyword 'multipleOf' at # has 99999989, 99999971: too many digits together",
        ),
        (
            schema_constraint({"propertyNames": {"anyOf": [{"pattern": "a"}, {"pattern": "b"}]}}),
            "keyword 'anyOf' at #/propertyNames",
        ),
        (schema_constraint({"enum": [2**53 + 1]}), "keyword 'enum' at # has 9007199254740993"),
        (schema_constraint({"const": {"a": "\x00"}}), "keyword 'const' at # has control characters"),
        (schema_constraint({"properties": {"\x01": {}}}), "keyword 'properties' at # has control"),
        (schema_constraint({"$ref": "http://localhost/x.json"}), "localhost"),
        (schema_constraint({"$ref": "#"}), "cannot be compiled"),
        (schema_constraint({"minProperties": 2}), "keyword 'minProperties' at # is 2"),
        (schema_constraint({"prefixItems": [{}], "items": [{}]}), "keyword 'prefixItems' at # stands beside"),
        (schema_constraint({"pattern": "(?=a)"}), "look-around"),
        (schema_constraint({"pattern": "[a--b]"}), "keyword 'pattern' at # has '--'"),
        (schema_constraint({"properties": 3}), "keyword 'properties' at # is '3', it must be an object"),
        (schema_constraint({"items": 3}), "has '3' at #/items, where a schema"),
        (schema_constraint("{"), "is not JSON"),
        (schema_constraint("3"), "has '3' at #"),
        (schema_constraint({"$schema": "http://json-schema.org/draft-03/schema#"}), "drafts from 4 on"),
        (Constraint("regex", "a(?=b)"), "regex cannot be compiled: .* look-around"),
        (Constraint("regex", "[a"), "unclosed character class"),
        (Constraint("lark", "start: <nobody>"), "nobody"),
        (Constraint("lark", 'begin: "a"'), "no start rule"),
        (Constraint("ebnf", "root ::= ("), "cannot be read as GBNF"),
        (choice_constraint([]), "must be a list of one or several texts"),
        (choice_constraint(["a", ""]), "is not a text, or is empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_name_the_cause(constraint: Constraint, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        GRAMMARS.matcher(constraint)
    assert isinstance(caught.value, InvalidRequest) and caught.value.param == constraint.kind


def reference_chain(count: int) -> dict[str, object]:
    links = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{count}": {"type": "null"}}}


def rule_chain(count: int) -> str:
    return "start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(count)) + f'\na{count}: "x"'


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constraint("regex", "a" * 300_000),
        lambda: Constraint("lark", "start: " + "(" * 100_000 + '"a"' + ")" * 100_000),
        lambda: Constraint("lark", rule_chain(9_000)),
        lambda: Constraint("ebnf", "root ::= " + "(" * 500 + '"a"' + ")" * 500),
        lambda: schema_constraint(reference_chain(3_000)),
        lambda: schema_constraint("[" * 100_000),
        lambda: schema_constraint('{"items":' * 500 + "{}" + "}" * 500),
        lambda: schema_constraint('{"const":' + "[" * 500 + "]" * 500 + "}"),
        lambda: choice_constraint([str(i) for i in range(5_000)]),
        lambda: schema_constraint(
            {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(8)]} for i in range(8)]}
        ),
    ],
)
def test_what_is_too_large_is_refused(make: object) -> None:
    """Every one of these ended the process or a minute before there were limits."""
    assert callable(make)
    with pytest.raises(GrammarError):
        GRAMMARS.matcher(make())


@pytest.mark.parametrize("make", [lambda: Constraint("lark", rule_chain(1_900)),
                                  lambda: schema_constraint(reference_chain(600))])  # fmt: skip
def test_what_is_just_not_too_large_compiles(make: object) -> None:
    assert callable(make)
    threads = [threading.Thread(target=GRAMMARS.matcher, args=(make(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    GRAMMARS.matcher(make())


def test_one_long_line_is_read_once() -> None:
    with pytest.raises(GrammarError):
        GRAMMARS.matcher(Constraint("lark", "a" * 250_000))


def test_a_limit_met_by_one_output_does_not_end_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a compiled grammar share a lexer: what one of them breaks the others must not feel."""
    monkeypatch.setattr(grammar_compile, "MAX_LEXER_STATES", 60)
    grammars = new_grammars()
    constraint = Constraint("regex", "(a|b)*a(a|b){7}")
    mine, other = grammars.matcher(constraint), grammars.matcher(constraint)
    mine.accept(ord("a"))
    rng = random.Random(1)
    with pytest.raises(GrammarError, match="cannot be followed any further: lexer error"):
        for _ in range(1000):
            other.mask()
            other.accept(rng.choice(b"ab"))
    for byte in b"aaaaaaaaa":
        assert byte in allowed(mine)
        mine.accept(byte)
    assert EOS in allowed(mine)
    assert EOS not in allowed(grammars.matcher(constraint))


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^\S+$", ["a"], ["\ufeff", "\u2028", ""]),
        (r"^[^\s]$", ["a"], ["\ufeff", " "]),
        (r"^[\s.]$", [".", "\u00a0"], ["a"]),
        (r"^.$", ["a", "\\"], ["\n", "\u2028"]),
        (r"^[[&~.]$", ["[", "&", "~", "."], ["a", "]"]),
        (r"^[^a&&b]$", ["c"], ["a", "b", "&"]),
        (r"\.\[x", ["a.[xy"], [".x", "a[x"]),
        (r"^\d\w$", ["1a"], ["\u0661a", "1é"]),
    ],
)
def test_patterns_mean_what_they_mean_in_ecma_262(pattern: str, right: list[str], wrong: list[str]) -> None:
    constraint = schema_constraint({"type": "string", "pattern": pattern})
    for text in right:
        assert admits(constraint, json.dumps(text, ensure_ascii=False)), text
    for text in wrong:
        assert not admits(constraint, json.dumps(text, ensure_ascii=False)), text


def test_a_compiler_that_fails_is_an_error_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    def fail(*_: object, **__: object) -> None:
        raise Panic("index out of bounds")

    monkeypatch.setattr("llguidance.LLMatcher", fail)
    with pytest.raises(GrammarError, match="the compiler failed"):
        new_grammars().matcher(Constraint("regex", "a"))


def test_dates_know_leap_years() -> None:
    date = re.compile(FORMAT_PATTERNS["date"])
    for year in (1900, 1999, 2000, 2023, 2024, 2100, 2400):
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        assert bool(date.search(f"{year}-02-29")) == leap, year
    for text in ("2024-13-01", "2024-04-31", "2024-00-10", "2024-1-1"):
        assert not date.search(text), text
    assert re.search(FORMAT_PATTERNS["date-time"], "2024-02-29T23:59:59.5+01:00")
