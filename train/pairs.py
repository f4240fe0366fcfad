"""Pairs of related texts: task and command, question and SQL, two utterances with one intent."""

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

SHELL_SHARE, SQL_SHARE = 0.4, 0.25  # of the batches; the others are utterances
WORN = 0.12  # of an utterance's words are dropped, so that no single word decides
LONGEST = 64  # tokens of a text in training; longer texts are truncated

Pair = tuple[str, str, str]
"""Two texts and their group: texts of one group are not negatives of each other."""


@dataclass(frozen=True, slots=True)
class PairSources:
    """All data of the recipe, read."""

    shell: Shell
    sql: Sql
    intents: dict[str, list[Remark]]


def read_pair_sources(data: Path) -> PairSources:
    """Raises MissingData naming the first missing file."""
    return PairSources(Shell(data), Sql(data), read_intents(data))


def sql_pair(question: Question) -> tuple[str, str]:
    """A question and its statement; the table has a neutral name."""
    return question.text, statement(question, "t")


class Pairs:
    """Draws batches, each from a single source, which makes the negatives harder."""

    def __init__(self, sources: PairSources, tokenizer: Tokenizer) -> None:
        self._sources = sources
        self._tokenizer = tokenizer
        self._by_intent: dict[str, list[str]] = {}
        for text, intent in sources.intents["train"]:
            self._by_intent.setdefault(intent, []).append(text)
        self._intents = sorted(self._by_intent)

    def batch(self, key: tuple[int, int], texts: int, length: int) -> Batch:
        """`texts` texts, pairs adjacent, a function of `key`. In the Batch, `documents` is 1 for tokens
        and 0 for padding; `weights[:, 0]` is the group number.
        """
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
    """The text without some of its words; at least one is left."""
    words = text.split()
    kept = [word for word in words if random.random() >= WORN]
    return " ".join(kept or [pick(words, random)])


def padded(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [texts, longest], and a mask without padding."""
    ids = [encoding.ids[:LONGEST] for encoding in tokenizer.encode_batch(list(texts))]
    tokens = torch.zeros(len(ids), max(map(len, ids)), dtype=torch.long)
    documents = torch.zeros_like(tokens)
    for row, own in enumerate(ids):
        tokens[row, : len(own)] = torch.tensor(own)
        documents[row, : len(own)] = 1
    return tokens, documents
