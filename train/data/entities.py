"""Texts with entities, from WNUT17, the Broad Twitter Corpus and Presidio's synthetic sentences."""

import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corpus import MissingData
from numpy.random import Generator

from data.words import pick

WNUT, BTC, PII = "ner/wnut17", "ner/btc", "pii/generated_large.json.xz"
HELD_OUT_OF = 3  # one template in this many is held out

# Natural names for the corpora's labels. The corpora define entities differently, so labels that they
# share get different names.
WNUT_LABELS = {
    "person": "person",
    "location": "location",
    "corporation": "corporation",
    "product": "product",
    "creative-work": "creative work",
    "group": "group",
}
BTC_LABELS = {"PER": "person or user name", "LOC": "place", "ORG": "organisation"}
PII_LABELS = {
    "PERSON": "full name",
    "ADDRESS": "address",
    "LOCATION": "country or city",
    "ORGANIZATION": "company",
    "CREDIT_CARD": "credit card number",
    "PHONE_NUMBER": "phone number",
    "DATE_TIME": "date",
    "EMAIL_ADDRESS": "email address",
    "US_SSN": "social security number",
    "IBAN_CODE": "bank account number",
    "DOMAIN_NAME": "web domain",
    "TITLE": "job title",
    "PREFIX": "form of address",
    "US_DRIVER_LICENSE": "driver licence number",
    "IP_ADDRESS": "IP address",
}


@dataclass(frozen=True, slots=True)
class Entity:
    """Characters [start, end) of a text."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Tagged:
    """A text with all entities of `labels`."""

    text: str
    entities: tuple[Entity, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaggedSources:
    """Training texts by corpus, and evaluation texts."""

    learned: dict[str, list[Tagged]]
    held_out: dict[str, list[Tagged]]


@dataclass(frozen=True, slots=True)
class Mentions:
    """Entities of a corpus by label, used to replace each other (Dai and Adel 2020)."""

    by_label: dict[str, list[str]]

    @staticmethod
    def of(texts: Sequence[Tagged]) -> "Mentions":
        """Collect the entities of the texts, with repetitions."""
        found: dict[str, list[str]] = {}
        for text in texts:
            for entity in text.entities:
                found.setdefault(entity.label, []).append(text.text[entity.start : entity.end])
        return Mentions(found)

    def swapped(self, text: Tagged, share: float, random: Generator) -> Tagged:
        """The text with about this share of its entities replaced; they must be ordered and disjoint."""
        made, entities, at = "", list[Entity](), 0
        for entity in text.entities:
            made += text.text[at : entity.start]
            mention = text.text[entity.start : entity.end]
            if random.random() < share:
                mention = pick(self.by_label[entity.label], random)
            entities.append(Entity(len(made), len(made) + len(mention), entity.label))
            made, at = made + mention, entity.end
        return Tagged(made + text.text[at:], tuple(entities), text.labels)


def read_tagged(data: Path) -> TaggedSources:
    """Raises MissingData naming the first missing file."""
    tweets = [read_conll(data / BTC / f"{part}.conll.xz", BTC_LABELS) for part in "abefgh"]
    pii = _read_pii(data / PII)
    learned = {
        "wnut": read_conll(data / WNUT / "train.conll.xz", WNUT_LABELS),
        "btc": [tagged for part in tweets for tagged in part],
        "pii": [tagged for template, tagged in pii if template % HELD_OUT_OF],
    }
    held_out = {
        "wnut": read_conll(data / WNUT / "dev.conll.xz", WNUT_LABELS),
        "pii": [tagged for template, tagged in pii if template % HELD_OUT_OF == 0],
    }
    return TaggedSources(learned, held_out)


def read_conll(path: Path, names: dict[str, str]) -> list[Tagged]:
    """Sentences from a file with B-, I- and O tags; words are joined by spaces."""
    found: list[Tagged] = []
    for block in _read(path).split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines() if "\t" in line]
        if rows:
            found.append(_sentence([row[0] for row in rows], [row[-1].strip() for row in rows], names))
    return found


def _sentence(words: Sequence[str], marks: Sequence[str], names: dict[str, str]) -> Tagged:
    entities: list[Entity] = []
    at = 0
    for word, mark in zip(words, marks, strict=True):
        begins, _, kind = mark.partition("-")
        last = entities[-1] if entities else None
        if begins == "I" and last is not None and last.end == at - 1 and last.label == names[kind]:
            entities[-1] = Entity(last.start, at + len(word), last.label)
        elif begins in ("B", "I"):
            entities.append(Entity(at, at + len(word), names[kind]))
        at += len(word) + 1
    return Tagged(" ".join(words), tuple(entities), tuple(names.values()))


def _read_pii(path: Path) -> list[tuple[int, Tagged]]:
    found: list[tuple[int, Tagged]] = []
    for entry in json.loads(_read(path)):
        spans = sorted(entry["spans"], key=lambda span: span["start_position"])
        entities = tuple(
            Entity(span["start_position"], span["end_position"], PII_LABELS[span["entity_type"]])
            for span in spans
        )
        found.append(
            (int(entry["template_id"]), Tagged(entry["full_text"], entities, tuple(PII_LABELS.values())))
        )
    return found


def _read(path: Path) -> str:
    if not path.is_file():
        raise MissingData(f"{path} is missing: pass --data the folder that holds {WNUT}, {BTC} and {PII}")
    return lzma.decompress(path.read_bytes()).decode()
