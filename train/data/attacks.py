"""Prompt injections, made of phrases, and harmless texts with the same words: for the guard `injection`."""

import re
from pathlib import Path

import numpy as np

from data.documents import read_documents
from data.intents import read_banking, read_intents
from data.scope import Task, problem_texts, question_texts
from data.shell import Shell

INJECTION, HARMLESS = "injection", "harmless"
LEAST = 0.5
_ATTACKS, _DOCUMENTS = 12_000, 8_000
MAX_PIECE = 1000
FILE = Path(__file__).with_name("attacks.txt")
_SLOT = re.compile(r"\{(\w+)\}")


def read_attacks(data: Path) -> Task:
    """Raises MissingData. Held out: forms of attacks that were left out, every fifth document, the test
    part of CLINC150, Banking77."""
    random = np.random.default_rng(11)
    documents = read_documents(data)
    forms, parts = _phrases(INJECTION)
    attacks = _drawn([one for at, one in enumerate(forms) if at % 9], parts, _ATTACKS, random)
    other = _drawn([one for at, one in enumerate(forms) if at % 9 == 0], parts, 500, random)
    harmless = [
        *_drawn(*_phrases(HARMLESS), _ATTACKS // 2, random),
        *problem_texts(data, random),
        *question_texts(data),
        *(one.task for one in Shell(data).examples),
        *(text for text, _ in read_intents(data)["train"]),
        *_pieces([one for at, one in enumerate(documents) if at % 5], random),
    ]
    quiet = {text.lower() for text in harmless}
    train = [(one, INJECTION) for one in attacks if one.lower() not in quiet]
    train = [(_hidden(text, harmless, random), label) for text, label in train]
    return Task(
        train + [(one, HARMLESS) for one in harmless],
        {
            "unseen forms": [(one, INJECTION) for one in other],
            "documents": [(one, HARMLESS) for one in _pieces(documents[::5], random)],
            "clinc150": [(text, HARMLESS) for text, _ in read_intents(data)["test"]],
            "banking77": [(text, HARMLESS) for text, _ in read_banking(data, 0)[1]],
        },
        INJECTION,
        LEAST,
    )


def _phrases(kind: str) -> tuple[list[str], dict[str, str]]:
    """Forms, and what fills them by name."""
    text = FILE.read_text().partition(f"[{kind}]\n")[2].partition("\n[")[0]
    names, _, forms = text.partition("forms:\n")
    return forms.strip().split("\n"), dict(line.split(": ", 1) for line in names.splitlines())


def _pieces(documents: list[str], random: np.random.Generator) -> list[str]:
    """Some paragraphs of technical documents, half of them line by line."""
    found = [one for text in documents for one in text.split("\n\n") if 40 < len(one) < MAX_PIECE]
    chosen = [found[at] for at in random.permutation(len(found))[:_DOCUMENTS]]
    half = len(chosen) // 2
    return chosen[:half] + [line for one in chosen[half:] for line in one.split("\n") if len(line) > 20]


def _drawn(forms: list[str], parts: dict[str, str], count: int, random: np.random.Generator) -> list[str]:
    choices = {name: text.split("|") for name, text in parts.items()}

    def one() -> str:
        form = str(random.choice(forms))
        return _written(_SLOT.sub(lambda slot: str(random.choice(choices[slot[1]])), form), random)

    return [one() for _ in range(count)]


def _written(text: str, random: np.random.Generator) -> str:
    """In some case, with or without a mark at the end, some with letters swapped."""
    kind = random.random()
    text = text.upper() if kind < 0.05 else text[0].upper() + text[1:] if kind < 0.6 else text
    if random.random() < 0.15 and len(text) > 8:
        at = int(random.integers(2, len(text) - 2))
        text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return text + str(random.choice(["", "", ".", "!"]))


def _hidden(text: str, harmless: list[str], random: np.random.Generator) -> str:
    """Some attacks stand behind a harmless text."""
    if random.random() > 0.2:
        return text
    return f"{harmless[int(random.integers(len(harmless)))]}\n{text}"
