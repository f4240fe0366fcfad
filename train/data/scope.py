"""What is one of `mini`'s tasks, and what is none: for the sentence that says so."""

import io
import json
import lzma
import tarfile
from collections.abc import Sequence
from csv import reader
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from corpus import MissingData

from data.edits import _ASKS, _REPEATS
from data.everyday import Everyday
from data.intents import read_banking, read_intents
from data.rephrase import USUAL
from data.shell import Shell, held_out_question
from data.talk import _ANSWERS, _LEFT_OUT, _OWN

INSIDE, OUTSIDE = "inside", "outside"
LEAST = 0.9
MMLU, GSM8K = "reasoning/mmlu/mmlu_val.tar.xz", "reasoning/gsm8k/train.jsonl.xz"
QUESTIONS = ("prompts/mt_bench/question.jsonl", "prompts/vicuna_bench/question.jsonl")
_EVERYDAY = 6000
_PROBLEMS = 1500
_WANTS = """
write a poem about; write an essay on; write a story about; write me a letter to; draft an email about;
compose a song about; tell me a joke about; translate this into; how do you say; summarize; give me a
recipe for; plan a trip to; recommend a book about; explain; who was; what is the capital of; when did;
why do; how does; what do you think about; write a python function that; write a javascript program that;
fix this code; debug this program; solve the equation; calculate; what is the meaning of; draw a picture
of; describe the image of; play some music by; order a pizza from; book a flight to; call; what is the
weather in; give me the news about; should I buy; how can I treat; is it legal to; who will win; define;
proofread this essay about; name ten kinds of; compare; what are the side effects of; teach me; pretend
that you are; give me tips for; how do I cook; how do I learn; what happened in
"""
_THINGS = """
autumn; Napoleon; the second world war; Portugal; love; black holes; French; my boss; a headache; chicken
soup; electric cars; two numbers; a linked list; the moon; my grandmother; climate change; Shakespeare;
yoga; stocks; a lion; chess; democracy; vitamin C; Tokyo; guitar; x + 3 = 9; the election; bitcoin; a
wedding; rivers of Africa; German grammar; football; dogs and cats; my landlord; pasta; a sorting
algorithm; photosynthesis; the Roman empire; jazz; sleep
"""


@dataclass(frozen=True, slots=True)
class Task:
    """Pairs (text, label). `wanted` is what is to be found, from the score `least` on."""

    train: list[tuple[str, str]]
    held_out: dict[str, list[tuple[str, str]]]
    wanted: str
    least: float


def read_scope(data: Path) -> Task:
    """Raises MissingData. Held out: a tenth of the shell pages' examples in wordings of their own, the test
    part of CLINC150, all of Banking77."""
    random = np.random.default_rng(7)
    shell, everyday = Shell(data), Everyday()
    kept = [one for at, one in enumerate(shell.examples) if at % 10]
    left = [one for at, one in enumerate(shell.examples) if at % 10 == 0]
    inside = [held_out_question(one, USUAL, random) for one in kept] + [
        everyday.draw(random) for _ in range(_EVERYDAY)
    ]
    stories = _forms(("Continue the story:\n{text}", "Go on with this story:\n{text}"), random)
    texts = [_said(one) for one in inside] + [one.task for one in kept] + stories
    remarks = read_intents(data)
    small = {intent: intent in _ANSWERS and intent != "meaning_of_life" for _, intent in remarks["train"]}

    def labeled(part: str) -> list[tuple[str, str]]:
        return [
            (text, INSIDE if small[intent] else OUTSIDE)
            for text, intent in remarks[part]
            if intent not in _LEFT_OUT
        ]

    talk = [text for several, _ in _OWN for text in several] * 20
    edits = _forms((*_ASKS, *_REPEATS), random)
    outside = [*problem_texts(data, random), *question_texts(data), *_made(), *edits]
    train = [(text, INSIDE) for text in texts + talk] + labeled("train") + [(one, OUTSIDE) for one in outside]
    return Task(
        [(_noised(text, random), label) for text, label in train],
        {
            "shell": [(held_out_question(one, USUAL, random).messages[0]["content"], INSIDE) for one in left],
            "clinc150": labeled("test"),
            "banking77": [(text, OUTSIDE) for text, _ in read_banking(data, 0)[1]],
        },
        OUTSIDE,
        LEAST,
    )


def _said(conversation: object) -> str:
    return str(conversation.messages[0]["content"])  # type: ignore[attr-defined]


def _forms(asks: Sequence[str], random: np.random.Generator) -> list[str]:
    """Stories to continue, and edits, which `mini` gets wrong; their texts may be about anything."""
    texts = (
        "It was late.",
        "The meeting is on Monday.",
        "Dear Anna, thank you for the letter.",
        "He went home.",
    )
    words = ("Anna", "Monday", "home", "letter", "red", "12", "the old man")
    return [
        one.format(old=random.choice(words), new=random.choice(words), text=random.choice(texts))
        for one in asks
        for _ in range(60)
    ]


def problem_texts(data: Path, random: np.random.Generator) -> list[str]:
    path = data / GSM8K
    if not path.is_file() or not (data / MMLU).is_file():
        raise MissingData(f"{GSM8K} or {MMLU} is missing: pass --data the folder that holds them")
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    sums = [json.loads(lines[at])["question"] for at in random.permutation(len(lines))[:_PROBLEMS]]
    with tarfile.open(data / MMLU) as archive:
        files = [archive.extractfile(one) for one in archive.getmembers() if one.name.endswith(".csv")]
        rows = [row for one in files if one is not None for row in reader(io.StringIO(one.read().decode()))]
    return sums + [row[0] for row in rows]


def question_texts(data: Path) -> list[str]:
    found = [line for name in QUESTIONS for line in (data / name).read_text().splitlines()]
    return [turn for line in found for turn in json.loads(line)["turns"]] * 3


def _made() -> list[str]:
    wants, things = (
        [" ".join(one.split()) for one in text.split(";")] for text in (_WANTS.strip(), _THINGS.strip())
    )
    return [f"{want} {thing}" for want in wants for thing in things]


def _noised(text: str, random: np.random.Generator) -> str:
    if random.random() < 0.2:
        text = text.rstrip(".?!")
    return text
