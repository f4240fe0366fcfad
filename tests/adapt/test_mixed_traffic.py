"""Fingerprints on traffic of many applications, made of real rows: no task is split, no two are merged."""

from __future__ import annotations

import bz2
import csv
import io
import json
import lzma
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.adapt.traffic.fingerprint import fingerprint
from headrace.chat.messages import Message
from headrace.chat.tools import Tool, ToolUse
from headrace.grammar.constraint import Constraint
from headrace.inference.requests import ChatRequest, CompletionRequest, GenerationRequest

DATA = Path(os.environ.get("HEADRACE_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not (DATA / "intents").is_dir(), reason="needs ../shared/data")
REQUESTS = 6000
CHAT, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/completions"


class Application(NamedTuple):
    """A program: its instructions with places for variables, and what else its requests have."""

    rows: str
    instructions: str
    endpoint: str = CHAT
    key: str = "shop"
    tools: tuple[str, ...] = ()
    form: Any = None
    turns: int = 1


ENTITIES = {"type": "object", "properties": {"people": {"type": "array", "items": {"type": "string"}}}}
PLACES = {"type": "object", "properties": {"places": {"type": "array", "items": {"type": "string"}}}}
CALENDAR = ("create_event", "list_events")
APPLICATIONS = [
    Application("bank", "Sort the question of a bank's customer. Today is {date}. Ticket {uuid}."),
    Application("bank", "Sort the question of a bank's customer. Today is {date}. Ticket {uuid}.", key="lab"),
    Application("bank", "Answer the customer {email} politely. Order {number}, {time}."),
    Application("bank", "Answer the customer {email} briefly. Order {number}, {time}."),
    Application("bank", "Answer the customer {email} briefly. Order {number}, {time}.", endpoint=MESSAGES),
    Application("clinc", "Name the intent of what an assistant heard at {time} on {date}."),
    Application("clinc", "Name the domain of what an assistant heard at {time} on {date}."),
    Application("clinc", "You are an assistant. It is {date}, {time}.", tools=("set_alarm", "get_weather")),
    Application("clinc", "You are an assistant. It is {date}, {time}.", tools=CALENDAR),
    Application("clinc", "You are an assistant. It is {date}, {time}.", tools=(*CALENDAR, "delete_event")),
    Application("wikisql", "Write SQL for the table {number} of {url}. Session {uuid}."),
    Application("wikisql", "Write SQLite for the table {number} of {url}. Session {uuid}."),
    Application("advising", "Write SQL for the courses of {date}. Schema version {version}."),
    Application("advising", "Explain the SQL for the courses of {date}. Schema version {version}."),
    Application("wnut", "Find the people in a post of {date}.", form=("json_schema", ENTITIES)),
    Application("wnut", "Find the people in a post of {date}.", form=("json_schema", PLACES)),
    Application("wnut", "Find the people in a post of {date}.", form=("json_object", {})),
    Application("wnut", "Find the people in a post of {date}."),
    Application("btc", "Translate the post {uuid} to French. It has at most {number} characters."),
    Application("btc", "Translate the post {uuid} to German. It has at most {number} characters."),
    Application("math", "Solve the problem {number}. Show your work. Report to {email}."),
    Application("math", "Solve the problem {number}. Give the number alone. Report to {email}."),
    Application("math", "", turns=3),
    Application(
        "mmlu", "Answer question {number} of the exam of {date} with A, B, C or D.", form=("choice", "ABCD")
    ),
    Application("mmlu", "Answer question {number} of the exam of {date} with A, B, C or D."),
    Application("tools", "", endpoint=COMPLETIONS),
    Application("tools", "", endpoint=COMPLETIONS, key="lab"),
    Application("tools", "Complete the call. Use {url}, {version}.", tools=("find_restaurant",), turns=3),
]


def texts(data: Any) -> Iterator[str]:
    """What people wrote in a file of questions with SQL."""
    for one in data:
        yield from (said["text"] for said in one["sentences"])


def posts(file: Path) -> list[str]:
    blocks = lzma.decompress(file.read_bytes()).decode().split("\n\n")
    return [" ".join(line.split()[0] for line in block.splitlines() if line.split()) for block in blocks]


def real_rows() -> dict[str, list[str]]:
    """Rows of eight sets, as people wrote them."""
    import tarfile

    def unpacked(name: str) -> bytes:
        return lzma.decompress((DATA / name).read_bytes())

    bank = list(csv.reader(io.StringIO(unpacked("intents/banking77/train.csv.xz").decode())))[1:]
    clinc = json.loads(unpacked("intents/clinc150/data_small.json.xz"))
    wiki = json.loads(bz2.decompress((DATA / "sql/text2sql/wikisql.json.bz2").read_bytes()))
    with tarfile.open(DATA / "reasoning/mmlu/mmlu_val.tar.xz") as packed:
        exams = [packed.extractfile(one) for one in packed.getmembers() if one.name.endswith(".csv")]
        mmlu = [row[0] for one in exams[:20] if one for row in csv.reader(io.TextIOWrapper(one, "utf-8"))]
    math = [json.loads(line)["question"] for line in unpacked("reasoning/gsm8k/train.jsonl.xz").splitlines()]
    private = json.loads(unpacked("pii/generated_large.json.xz"))
    return {
        "bank": [row[0] for row in bank],
        "clinc": [text for text, _ in clinc["train"]],
        "wikisql": list(texts(wiki[:3000])),
        "advising": list(texts(json.loads(unpacked("sql/text2sql/advising.json.xz")))),
        "wnut": posts(DATA / "ner/wnut17/train.conll.xz"),
        "btc": posts(DATA / "ner/btc/a.conll.xz"),
        "math": math,
        "mmlu": mmlu,
        "tools": [one["full_text"] for one in private],
    }


def variables(drawn: random.Random) -> dict[str, str]:
    """As programs write them."""
    day, month, number = drawn.randint(1, 28), drawn.randint(1, 12), drawn.randint(1, 10**7)
    names = ("Jan", "February", "March", "Apr", "May", "June", "July", "Aug", "Sept", "October", "Nov", "Dec")
    weekday = drawn.choice(("Monday", "Tuesday", "Sunday"))
    dates = (
        f"2026-{month:02}-{day:02}",
        f"{day}.{month}.2026",
        f"{month}/{day}/26",
        f"{names[month - 1]} {day}, 2026",
        f"{weekday}, {day} {names[month - 1]} 2026",
        f"2026-{month:02}-{day:02}T{day:02}:00:00Z",
    )
    return {
        "date": drawn.choice(dates),
        "time": drawn.choice((f"{day:02}:{month:02}", f"{day:02}:{month:02}:07", f"{month}:{day:02}pm")),
        "uuid": f"{drawn.getrandbits(32):08x}-12ab-4cde-8f01-{drawn.getrandbits(48):012x}",
        "email": f"user{number}@example.org" if number % 2 else f"ann.lee+{number}@mail.example.com",
        "number": drawn.choice((str(number), f"{number:,}", f"#{number}", f"A-{number}")),
        "url": f"https://example.org/{drawn.getrandbits(32):x}?q={day}",
        "version": f"v{month}.{day}.{drawn.randint(0, 9)}",
    }


def request_of(one: Application, rows: Callable[[], str], drawn: random.Random) -> GenerationRequest:
    """A request of an application, about rows."""
    if one.endpoint == COMPLETIONS:
        return CompletionRequest(id="r", prompts=(rows(),))
    instructions = one.instructions.format(**variables(drawn))
    said = [Message("system", instructions)] if instructions else []
    for turn in range(drawn.randint(1, one.turns)):
        said += [Message("assistant", rows())] if turn else []
        said.append(Message("user", rows()))
    tools = [Tool(name, f"since {drawn.random()}", {}) for name in one.tools]
    drawn.shuffle(tools)
    form = None
    if one.form is not None:
        kind, value = one.form
        form = Constraint(kind, json.dumps(value, indent=drawn.choice((None, 2))))
    return ChatRequest(
        id="r",
        messages=tuple(said),
        tools=ToolUse(tuple(tools), (), "auto", True) if tools else None,
        constraint=form,
    )


def test_no_task_of_mixed_traffic_is_merged_or_split() -> None:
    rows, drawn = real_rows(), random.Random(33)
    assert all(len(one) > 300 for one in rows.values()), {name: len(one) for name, one in rows.items()}
    found: dict[int, Counter[str]] = {}
    for number in range(REQUESTS):
        place = (
            number % len(APPLICATIONS) if number < 2000 else int(drawn.paretovariate(0.6)) % len(APPLICATIONS)
        )
        one = APPLICATIONS[place]
        request = request_of(one, lambda one=one: drawn.choice(rows[one.rows]), drawn)
        print_ = fingerprint(request, group=f"key {one.key}", endpoint=one.endpoint)
        found.setdefault(place, Counter())[print_.id] += 1
    split = {place: len(ids) for place, ids in found.items() if len(ids) > 1}
    ids = Counter(id for ids in found.values() for id in ids)
    merged = [id for id, count in ids.items() if count > 1]
    assert len(found) == len(APPLICATIONS) >= 20
    assert not split and not merged, (split, merged)
    print(f"{REQUESTS} requests of {len(found)} applications: {len(ids)} tasks, 0 merged, 0 split")
