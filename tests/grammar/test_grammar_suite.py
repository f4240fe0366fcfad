"""JSON-Schema-Test-Suite, draft 2020-12, through the mask: instances forced token by token, no model."""

from __future__ import annotations

import itertools
import json
import lzma
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tokenizers

from headrace.grammar.constraint import GrammarError, schema_constraint
from headrace.grammar.matcher import Grammars, Matcher
from headrace.grammar.token_table import TokenTable
from headrace.tokenization.tokenizer import Tokenizer

EOS = 50256


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


# Rejected though valid: 1.0 for the integer 1, formats (enforced though they need not be), leap seconds,
# quoted mailboxes, dotted IPv6, hosts in Punycode.
@pytest.mark.parametrize(
    ("folder", "right", "false_rejects"),
    [("", 596, 19), ("/optional", 92, 3), ("/optional/format", 430, 31)],
)
def test_no_false_accept(
    grammars: Grammars, shared_data: Path, folder: str, right: int, false_rejects: int
) -> None:
    tally = run(grammars, shared_data, f"tests/draft2020-12{folder}")
    refusals = "\n".join(f"{count} x {message}" for message, count in tally.refused.most_common())
    print(
        f"{tally.right} right, {len(tally.false_rejects)} false rejects, {tally.refused_cases} in refused "
        f"schemas:\n{refusals}"
    )
    assert tally.false_accepts == []
    assert (tally.right, len(tally.false_rejects)) == (right, false_rejects)


def test_refusals_name_what_is_not_supported(grammars: Grammars, shared_data: Path) -> None:
    for name, group in suite(shared_data, "tests/draft2020-12"):
        try:
            grammars.matcher(schema_constraint(group["schema"]))
        except GrammarError as error:
            named = re.findall(
                r"keyword '([^']+)'|Unimplemented keys: \[\"([^\"]+)|(multipleOf|patternPropert)",
                error.message,
            )
            impossible = "Unsatisfiable schema" in error.message
            reference = re.search(r"Resource '|Anchor '|Pointer '", error.message)
            assert named or impossible or reference, f"{name}: {error.message}"
            for keyword in filter(None, itertools.chain(*named)):
                assert keyword in json.dumps(group["schema"]) or keyword == "$dynamicAnchor", name
