"""JSON-Schema-Test-Suite, draft 2020-12, through the mask: instances forced token by token, no model."""

from __future__ import annotations

import itertools
import json
import lzma
import re
import tarfile
from collections.abc import Callable, Iterator
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
    """Groups of a folder. `impossible`: the schema admits nothing, which is refused, too."""

    accepted: int = 0
    refused: list[str] = field(default_factory=list)
    impossible: int = 0
    right: int = 0
    false_accepts: list[str] = field(default_factory=list)
    false_rejects: list[str] = field(default_factory=list)


def run(grammars: Grammars, shared_data: Path, draft: str, folder: str) -> Tally:
    tally = Tally()
    for name, group in suite(shared_data, f"tests/{draft}{folder}"):
        schema = group["schema"]
        if (
            isinstance(schema, dict) and draft != "draft2020-12"
        ):  # which is what a schema is read as by itself
            schema = {"$schema": DRAFTS[draft], **schema}
        constraint = schema_constraint(schema)
        tests = group["tests"]
        assert isinstance(tests, list)
        try:
            grammars.matcher(constraint)
        except GrammarError as error:
            if any(case["valid"] for case in tests):
                tally.refused.append(f"{name}: {error.message}")
                check_refusal(error.message, group, name)
            else:
                tally.impossible += 1
            continue
        tally.accepted += 1
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


def check_refusal(message: str, group: dict[str, object], name: str) -> None:
    """What is refused is named: a keyword of the schema, or what the compiler cannot do."""
    named = re.findall(r"keyword '([^']+)'|(multipleOf|patternPropert)", message)
    others = ("regex parse error", "circular references", "Unsatisfiable schema")
    assert named or any(other in message for other in others), f"{name}: {message}"
    for keyword in filter(None, itertools.chain(*named)):
        assert keyword in json.dumps(group["schema"]), f"{name}: {message}"


DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


# Rejected though valid: 1.0 for the integer 1, formats (enforced though they need not be), leap seconds,
# quoted mailboxes, dotted IPv6, hosts in Punycode, references that are not ASCII, numbers of many digits.
@pytest.mark.parametrize(
    ("draft", "folder", "accepted", "refused", "false_rejects"),
    [
        ("draft2020-12", "", 339, 32, 29),
        ("draft2020-12", "/optional", 45, 5, 9),
        ("draft2020-12", "/optional/format", 28, 0, 79),
        pytest.param("draft2019-09", "", 328, 31, 11, marks=pytest.mark.nightly),
        ("draft7", "", 225, 21, 10),
        pytest.param("draft6", "", 200, 21, 10, marks=pytest.mark.nightly),
        ("draft4", "", 142, 16, 5),
    ],
)
def test_no_false_accept(
    grammars: Grammars,
    shared_data: Path,
    record_property: Callable[[str, object], None],
    draft: str,
    folder: str,
    accepted: int,
    refused: int,
    false_rejects: int,
) -> None:
    tally = run(grammars, shared_data, draft, folder)
    print("\n".join([*tally.refused, *tally.false_rejects]))
    figures = (tally.accepted, len(tally.refused), len(tally.false_rejects))
    record_property(
        "figures",
        f"{draft}{folder}: {tally.accepted} groups accepted, {len(tally.refused)} refused, "
        f"{tally.impossible} without any instance; {tally.right} cases right, "
        f"{len(tally.false_accepts)} accepted and {len(tally.false_rejects)} rejected falsely",
    )
    record_property("refused", json.dumps(tally.refused))
    # `regex` is the one standard format that is not checked: a warning says so.
    unchecked = ("regex.json", "ecmascript-regex.json")
    assert [case for case in tally.false_accepts if not case.startswith(unchecked)] == []
    assert figures == (accepted, refused, false_rejects)
