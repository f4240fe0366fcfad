"""Requests of one program are one task, those of two programs are two: mixed traffic without an error."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from headrace.adapt.traffic.fingerprint import VARIABLE, fingerprint, masked
from headrace.chat.messages import Message
from headrace.chat.tools import Tool, ToolUse
from headrace.gateway.privacy import PrivacyCheck
from headrace.grammar.constraint import Constraint
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.requests import ChatRequest
from headrace.storage.keys import KeyLimits

PROGRAMS = [
    "You sort questions of bank customers. Today is {date}. Request {uuid}.",
    "You sort questions of bank customers in French. Today is {date}. Request {uuid}.",
    "Translate to {{language}} as of {date}.",
    "You answer {email} about order {number} of {date}, {time}. Be short.",
    "You answer {email} about order {number} of {date}, {time}. Be kind.",
    "See {url} and call {number} times; version {version}.",
    "Answer with yes or no.",
    "",
]


def filled(program: str, random: random.Random) -> str:
    """Instructions as a program would send them."""
    day, month = random.randint(1, 28), random.randint(1, 12)
    names = ["January", "February", "March", "April", "May", "June", "July", "August", "September"]
    dates = [
        f"2026-{month:02}-{day:02}",
        f"{day}.{month}.2026",
        f"{random.choice(names)} {day}, 2026",
        f"Monday, {day} {random.choice(names)} 2026",
    ]
    number = random.randint(1, 10**7)
    return program.format(
        date=random.choice(dates),
        uuid=f"{random.getrandbits(32):08x}-12ab-4cde-8f01-{random.getrandbits(48):012x}",
        email=f"user{number}@example.org" if number % 2 else f"ann.lee+{number}@mail.example.com",
        number=f"{number:,}" if number % 3 else f"#{number}",
        time=f"{day:02}:{month:02}:07",
        url=f"https://example.org/{number}?q={day}",
        version=f"v{month}.{day}.0-rc{month}",
    )


def chat(system: str, **more: Any) -> ChatRequest:
    said = [Message("system", system)] if system else []
    return ChatRequest(id="r", messages=(*said, Message("user", "hi")), **more)


def test_mixed_traffic_has_as_many_tasks_as_programs() -> None:
    drawn = random.Random(0)
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    forms: list[Any] = [None, Constraint("json_schema", json.dumps(schema)), Constraint("json_object", "{}")]
    tools = [None, *(ToolUse((Tool(name, "", {}),), (), "auto", True) for name in ("find", "book"))]
    found: dict[Any, set[str]] = {}
    for _ in range(3000):
        at = drawn.randrange(len(PROGRAMS)), drawn.randrange(3), drawn.randrange(3), drawn.randrange(2)
        request = chat(filled(PROGRAMS[at[0]], drawn), constraint=forms[at[1]], tools=tools[at[2]])
        print_ = fingerprint(request, group=f"key {at[3]}", endpoint="/v1/chat/completions")
        found.setdefault(at, set()).add(print_.id)
    assert {len(one) for one in found.values()} == {1}, "one program is several tasks"
    assert len(set.union(*found.values())) == len(found) == 144, "several programs are one task"


def test_what_is_no_variable_stays() -> None:
    assert (
        masked("Answer in French, in at most 50 words.") == f"Answer in French, in at most {VARIABLE} words."
    )
    assert masked("You may answer. March on.") != masked("You must answer. March on.")
    assert masked("<PERSON_1> of <ORGANIZATION_12>") == masked("<PERSON_7> of <ORGANIZATION_1>")
    assert masked("a  b\nc") == "a b c"
    ordered = Constraint("json_schema", '{"b": 1, "a": 2}'), Constraint("json_schema", '{"a": 2, "b": 1}')
    ids = {fingerprint(chat("", constraint=one), group="", endpoint="").id for one in ordered}
    assert len(ids) == 1


@pytest.mark.parametrize("name", ["maria.lopez@example.org", "+49 170 1234567"])
def test_personal_data_is_a_variable(name: str) -> None:
    call = CallContext(request_id="r", account=Account("", KeyLimits()))
    request = chat(f"You write for {name}. Be short.")
    private = asyncio.run(PrivacyCheck(None).check(request, None, call, redacts=True))
    assert private.redacted is not None
    shown = fingerprint(private.redacted, group="", endpoint="")
    assert name not in shown.template and shown.template == f"You write for {VARIABLE}. Be short."


def test_long_words_take_no_time_of_their_square() -> None:
    for word in ("a", "a.", ",", "a-", "#a", "1#a"):
        assert masked(f"Be short. {word * 200_000} Be kind.") == f"Be short. {VARIABLE} Be kind."
    assert masked("a b. " * 10**5).startswith("a b. a b.")


def test_what_comes_late_in_long_instructions_counts() -> None:
    long = "Be short. " * 20_000
    ends = ("Answer yes.", "Answer no.", "Answer yes.")
    ids = [fingerprint(chat(long + end), group="", endpoint="").id for end in ends]
    assert ids[0] == ids[2] != ids[1]
