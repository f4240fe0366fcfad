"""Mixes conversations and running text into packed windows with a loss weight for every token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from dialogue import Conversation, Writer
from numpy.random import Generator
from stream import BEGIN_ID, Stream

SAMPLED = 200  # conversations to estimate the mean length of a part

Piece = tuple[np.ndarray, np.ndarray]  # of one text: token ids, and the loss weight of each


class Part(Protocol):
    """A source of conversations."""

    name: str

    def draw(self, random: Generator) -> Conversation:
        """One conversation, a function of `random` alone."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Windows of whole texts, each tensor [windows, length]: `tokens`, `documents` (index of the token's
    text within its window) and `weights` (loss weight of each token).
    """

    tokens: torch.Tensor
    documents: torch.Tensor
    weights: torch.Tensor


# (key, number of windows, length) -> batch.
Draw = Callable[[tuple[int, int], int, int], Batch]


@dataclass(frozen=True, slots=True)
class Text:
    """Running text and its share of the windows; every token is trained on, with loss weight `weight`."""

    stream: Stream
    share: float
    weight: float


class Mixture:
    """Draws batches. Space that conversations leave in a window is filled with the first text."""

    def __init__(self, writer: Writer, parts: Sequence[tuple[Part, float]], texts: Sequence[Text]) -> None:
        """`parts` have their share of the conversations' tokens."""
        self._writer = writer
        self._parts = [part for part, _ in parts]
        self._texts = texts
        random = np.random.default_rng(0)
        lengths = [
            np.mean([len(writer.tokens(part.draw(random)).ids) for _ in range(SAMPLED)])
            for part in self._parts
        ]
        rates = np.array([share for _, share in parts]) / np.array(lengths)
        self._chances = np.cumsum(rates / rates.sum())

    def batch(self, key: Sequence[int], windows: int, length: int) -> Batch:
        """`windows` of `length` tokens: a function of `key` alone."""
        random = np.random.default_rng(list(key))
        running = [text for text in map(self._text, random.random(windows)) if text is not None]
        rows = [_joined([_passage(text, length, random)]) for text in running]
        rows += [
            _joined([*window.pieces, *self._rest(window.room, random)])
            for window in self._packed(windows - len(running), length, random)
        ]
        tokens, documents, weights = (np.stack(column) for column in zip(*rows, strict=True))
        return Batch(torch.from_numpy(tokens), torch.from_numpy(documents), torch.from_numpy(weights))

    def _text(self, chance: float) -> Text | None:
        """The running text of a window, None for conversations; `chance` is uniform in [0, 1)."""
        for text in self._texts:
            if chance < text.share:
                return text
            chance -= text.share
        return None

    def _packed(self, windows: int, length: int, random: Generator) -> list["_Window"]:
        """As many conversations as fill the windows, longest first, each where the least space is left."""
        drawn: list[Piece] = []
        while sum(len(ids) for ids, _ in drawn) < windows * length:
            part = self._parts[int(np.searchsorted(self._chances, random.random()))]
            tokens = self._writer.tokens(part.draw(random))
            drawn.append((tokens.ids, tokens.learned.astype(np.float32)))
        found = [_Window(length) for _ in range(windows)]
        for piece in sorted(drawn, key=lambda piece: -len(piece[0])):
            fitting = [window for window in found if window.room >= len(piece[0])]
            if fitting:
                min(fitting, key=lambda window: window.room).add(piece)
        return found

    def _rest(self, room: int, random: Generator) -> list[Piece]:
        return [_passage(self._texts[0], room, random)] if room else []


@dataclass(slots=True)
class _Window:
    """Pieces, and the number of tokens still free."""

    room: int
    pieces: list[Piece] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.room -= len(piece[0])


def _passage(text: Text, length: int, random: Generator) -> Piece:
    ids = text.stream.windows(1, length, random)[0].numpy()
    return ids, np.where(ids == BEGIN_ID, 0.0, text.weight).astype(np.float32)


def _joined(pieces: list[Piece]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids = np.concatenate([ids for ids, _ in pieces]).astype(np.int64)
    weights = np.concatenate([weights for _, weights in pieces])
    documents = np.repeat(np.arange(len(pieces)), [len(ids) for ids, _ in pieces])
    return ids, documents, weights


def pack(writer: Writer, conversations: Sequence[Conversation]) -> Batch:
    """Each conversation in its own window, all as long as the longest: for evaluation."""
    written = [writer.tokens(conversation) for conversation in conversations]
    length = max(len(one.ids) for one in written)
    tokens = np.full((len(conversations), length), BEGIN_ID, np.int64)
    weights = np.zeros((len(conversations), length), np.float32)
    for row, one in enumerate(written):
        tokens[row, : len(one.ids)] = one.ids
        weights[row, : len(one.ids)] = one.learned
    documents = np.zeros_like(tokens)
    return Batch(torch.from_numpy(tokens), torch.from_numpy(documents), torch.from_numpy(weights))
