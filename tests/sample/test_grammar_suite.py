"""JSON-Schema-Test-Suite, draft 2020-12, through the mask: instances are forced token by token, without a model."""

from __future__ import annotations

import itertools
import json
import lzma
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tokenizers

from headrace.sample.grammar import GrammarError, schema_constraint
from headrace.sample.grammar_matcher import Grammars, Matcher
from headrace.sample.grammar_tokens import TokenTable
from headrace.text.tokenizer import Tokenizer

EOS = 50256
KEYWORDS_REFUSED = {
    "$dynamicAnchor", "$dynamicRef", "contains", "dependentRequired", "dependentSchemas", "else", "if",
    "maxContains", "minContains", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    "uniqueItems", "$vocabulary",
}  # fmt: skip


@pytest.fixture(scope="module")
def grammars(shared_data: Path) -> Grammars:
    packed = (shared_data / "tokenizers" / "hf" / "gpt2" / "tokenizer.json.xz").read_bytes()
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_buffer(lzma.decompress(packed)))
    table = TokenTable(
        tokens=tokenizer.pieces.bytes_of_all(tokenizer.vocabulary_size),
        special_ids=tokenizer.pieces.special_ids,
        eos_ids=frozenset({EOS}),
        encode=lambda text: tokenizer.encode(text, add_special=False, parse_special=False),
    )
    return Grammars(lambda: table)


def suite(shared_data: Path, prefix: str) -> Iterator[tuple[str, dict[str, object]]]:
    with tarfile.open(shared_data / "json_schema" / "json_schema_test_suite.tar.xz") as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            name = member.name.removeprefix("./")
            if member.isfile() and Path(name).parent.as_posix() == prefix and name.endswith(".json"):
                content = archive.extractfile(member)
                assert content is not None
                for group in json.load(content):
                    yield f"{Path(name).name}: {group['description']}", group


def spellings(value: object) -> Iterator[str]:
    """The instance as JSON in several ways; an object's names in every order."""
    yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    yield json.dumps(value)
    yield json.dumps(value, indent=2)
    if isinstance(value, dict) and 1 < len(value) <= 4:
        for order in itertools.permutations(value.items()):
            yield json.dumps(dict(order), ensure_ascii=False)


def admits(grammars: Grammars, matcher: Matcher, ids: list[int]) -> bool:
    """Whether the masks let these tokens and then the end through."""
    for token in [*ids, EOS]:
        if matcher.finished:
            return token == EOS
        if not matcher.mask()[token // 32] >> (token % 32) & 1:
            return False
        if token != EOS:
            matcher.accept(token)
    return True


@dataclass
class Tally:
    right: int = 0
    false_accepts: list[str] = field(default_factory=list)
    false_rejects: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    refused_cases: int = 0


def run(grammars: Grammars, shared_data: Path, prefix: str) -> Tally:
    tally = Tally()
    for name, group in suite(shared_data, prefix):
        constraint = schema_constraint(group["schema"])
        tests = group["tests"]
        assert isinstance(tests, list)
        try:
            grammars.matcher(constraint)
        except GrammarError as error:
            tally.refused[error.message] += 1
            tally.refused_cases += len(tests)
            continue
        for case in tests:
            texts = dict.fromkeys(spellings(case["data"]))
            accepted = [
                text for text in texts
                if admits(grammars, grammars.matcher(constraint), grammars.tokens(text))
            ]  # fmt: skip
            if bool(accepted) == case["valid"]:
                tally.right += 1
            elif accepted:
                tally.false_accepts.append(f"{name}: {case['description']}: {accepted[0]}")
            else:
                tally.false_rejects.append(f"{name}: {case['description']}")
    return tally


@pytest.mark.parametrize(
    "prefix", ["tests/draft2020-12", "tests/draft2020-12/optional", "tests/draft2020-12/optional/format"]
)
def test_no_false_accept(grammars: Grammars, shared_data: Path, prefix) -> None:
    t = run(grammars, shared_data, prefix)
    print(prefix, t.right, len(t.false_accepts), len(t.false_rejects), t.refused_cases)
    for x in t.false_accepts:
        print("FA", x)
    for x in t.false_rejects:
        print("FR", x)
    for k, v in t.refused.most_common():
        print(v, k)
