"""Pairs of texts that belong together: task and command, question and SQL, two remarks of one intent."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from data.intents import Remark, read_intents
from data.shell import Shell
from data.sql import Question, Sql, statement
from data.words import pick
from mixture import Batch
from numpy.random import Generator
from tokenizers import Tokenizer

SHELL_SHARE, SQL_SHARE = 0.4, 0.25  # of the batches; the others are remarks
WORN = 0.12  # of the words of a remark are left out, so that no single one decides
LONGEST = 64  # tokens of a text in training; what is beyond is left out

Pair = tuple[str, str, str]
"""Two texts and their group: texts of one group are not told apart."""


@dataclass(frozen=True, slots=True)
class PairSources:
    """All data of the recipe, read."""

    shell: Shell
    sql: Sql
    intents: dict[str, list[Remark]]


def read_pair_sources(data: Path) -> PairSources:
    """Raises MissingData naming the first thing that is not there."""
    return PairSources(Shell(data), Sql(data), read_intents(data))


def sql_pair(question: Question) -> tuple[str, str]:
    """A question and its statement; the table has no name of its own."""
    return question.text, statement(question, "t")


class Pairs:
    """Draws batches, each of one source, so that the others in it are worth being told apart from."""

    def __init__(self, sources: PairSources, tokenizer: Tokenizer) -> None:
        self._sources = sources
        self._tokenizer = tokenizer
        self._by_intent: dict[str, list[str]] = {}
        for text, intent in sources.intents["train"]:
            self._by_intent.setdefault(intent, []).append(text)
        self._intents = sorted(self._by_intent)

    def batch(self, key: tuple[int, int], texts: int, length: int) -> Batch:
        """`texts` texts, pairs one after the other, a function of `key`. Of a Batch, `documents` is 1 for
        tokens and 0 for what fills a row up; `weights[:, 0]` numbers the groups."""
        random = np.random.default_rng(key)
        kind = random.random()
        pairs = [self._pair(kind, random) for _ in range(texts // 2)]
        numbers = {group: number for number, group in enumerate(dict.fromkeys(group for *_, group in pairs))}
        tokens, documents = padded(self._tokenizer, [text for *both, _ in pairs for text in both])
        groups = torch.tensor([numbers[group] for *_, group in pairs]).repeat_interleave(2)
        return Batch(tokens, documents, groups[:, None].float())

    def _pair(self, kind: float, random: Generator) -> Pair:
        if kind < SHELL_SHARE:
            asked, answered = (str(m["content"]) for m in self._sources.shell.draw(random).messages)
            return asked, answered, answered
        if kind < SHELL_SHARE + SQL_SHARE:
            asked, answered = sql_pair(pick(self._sources.sql.examples, random))
            return asked, answered, answered
        intent = self._intents[random.integers(len(self._intents))]
        remarks = self._by_intent[intent]
        first, second = random.permutation(len(remarks))[:2]
        return worn(remarks[first], random), worn(remarks[second], random), intent


def worn(text: str, random: Generator) -> str:
    """The text without some of its words; one is left at least."""
    words = text.split()
    kept = [word for word in words if random.random() >= WORN]
    return " ".join(kept or [pick(words, random)])


def padded(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [texts, longest] and which of them are the text's own."""
    ids = [encoding.ids[:LONGEST] for encoding in tokenizer.encode_batch(list(texts))]
    tokens = torch.zeros(len(ids), max(map(len, ids)), dtype=torch.long)
    documents = torch.zeros_like(tokens)
    for row, own in enumerate(ids):
        tokens[row, : len(own)] = torch.tensor(own)
        documents[row, : len(own)] = 1
    return tokens, documents
