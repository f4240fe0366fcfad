"""The tagger: encodes labels and text together, and scores each token for each label."""

from collections.abc import Sequence

import numpy as np
import torch
from data.entities import Entity, Mentions, Tagged, TaggedSources
from data.words import pick
from decoder import Decoder, Shape
from mixture import Batch
from objective import Objective
from spans import LABEL_MARK, LONGEST_SPAN, TEXT_MARK, Labeled, wanted_scores
from stream import BEGIN_ID
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from headrace.tasks.entity_finders.search import THRESHOLD
from headrace.tasks.entity_finders.tagger import best_spans, label_frame, token_units
from headrace.tokenization.tokenizer import Tokenizer as HeadraceTokenizer

SHARES = {"wnut": 0.4, "btc": 0.2, "pii": 0.4}
KEPT_LABELS = 0.85  # probability of including each label, so that the model has to read the labels
LONGEST = 160  # tokens of a row in training; longer rows are truncated
# of the entities are replaced by others with the same label, so that names alone are not learned
SWAPPED = 0.4
POSITIVE_WEIGHT = 3.0
PREFIX, TEXT = 1, 2  # values of Batch.documents


class Tagger(nn.Module):
    """Scores of tokens for labels: products of their states, each multiplied by a learned matrix (GLiNER:
    Zaratiana et al. 2023; start, end and inside as in Stepanov and Shtopko 2024).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.decoder = Decoder(shape)
        self.token = nn.Linear(shape.hidden, 3 * shape.head, bias=False)
        self.label = nn.Linear(shape.hidden, 3 * shape.head, bias=False)
        self.bias = nn.Parameter(torch.full((3,), -3.0))

    def initialize(self, generator: torch.Generator) -> None:
        """Initialize the decoder and the two matrices."""
        self.decoder.initialize(generator)
        for linear in (self.token, self.label):
            nn.init.normal_(linear.weight, 0.0, self.shape.hidden**-0.5, generator=generator)

    def forward(self, tokens: Tensor, documents: Tensor, marks: Tensor) -> Tensor:
        """Scores [rows, tokens, labels, 3]; `marks` [rows, labels] are the positions of label markers."""
        with torch.autocast(tokens.device.type, torch.bfloat16):
            states = self.decoder.states(tokens, (documents > 0)[:, None, None, :])
        rows, length, _ = states.shape
        own = self.token(states.float()).view(rows, length, 3, -1)
        at = marks[..., None].expand(-1, -1, states.shape[-1])
        theirs = self.label(states.float().gather(1, at)).view(rows, marks.shape[1], 3, -1)
        return torch.einsum("btkd,blkd->btlk", own, theirs) / self.shape.head**0.5 + self.bias


def labeled(tokenizer: HeadraceTokenizer, text: str, labels: Sequence[str]) -> Labeled:
    """The labels followed by the text."""
    frame, units = label_frame(tokenizer, labels, LABEL_MARK, TEXT_MARK), token_units(tokenizer, text)
    return Labeled([*frame.before, *units.ids], frame.marks, len(frame.before), units.characters)


class TagBatches:
    """Draws rows of labels and text."""

    def __init__(self, sources: TaggedSources, tokenizer: Tokenizer) -> None:
        self._sources = sources
        self._tokenizer = HeadraceTokenizer(tokenizer, bos_id=BEGIN_ID)
        self._mentions = {name: Mentions.of(texts) for name, texts in sources.learned.items()}

    def batch(self, key: tuple[int, int], rows: int, length: int) -> Batch:
        """A function of `key`. In the Batch, `documents` is 0 for padding, else PREFIX or TEXT, and
        `weights` [rows, tokens, labels * 3] are the targets.
        """
        random = np.random.default_rng(key)
        drawn: list[tuple[Labeled, np.ndarray]] = []
        for _ in range(rows):
            corpus = list(SHARES)[int(np.searchsorted(np.cumsum(list(SHARES.values())), random.random()))]
            text = self._mentions[corpus].swapped(
                pick(self._sources.learned[corpus], random), SWAPPED, random
            )
            labels = [label for label in random.permutation(text.labels) if random.random() < KEPT_LABELS]
            labels = labels or [text.labels[0]]
            encoded = labeled(self._tokenizer, text.text, labels)
            drawn.append((encoded, wanted_scores(encoded, text.entities, labels)))
        return _batch(drawn)


def _batch(drawn: list[tuple[Labeled, np.ndarray]]) -> Batch:
    longest = min(max(len(encoded.ids) for encoded, _ in drawn), LONGEST)
    labels = max(len(encoded.marks) for encoded, _ in drawn)
    tokens = torch.zeros(len(drawn), longest, dtype=torch.long)
    documents = torch.zeros_like(tokens)
    weights = torch.zeros(len(drawn), longest, labels, 3)
    for row, (encoded, wanted) in enumerate(drawn):
        ids = encoded.ids[:longest]
        tokens[row, : len(ids)] = torch.tensor(ids)
        documents[row, : len(ids)] = TEXT
        documents[row, : encoded.begin] = PREFIX
        text = weights[row, encoded.begin : len(ids), : wanted.shape[1]]
        text.copy_(torch.from_numpy(wanted[: len(text)]))
    return Batch(tokens, documents, weights.flatten(2))


def tag_objective(tagger: Tagger, tokenizer: Tokenizer) -> Objective:
    """Mean cross entropy over text tokens and the labels of their row."""
    label_mark = tokenizer.token_to_id(LABEL_MARK)

    def loss(batch: Batch) -> Tensor:
        rows, length = batch.tokens.shape
        wanted = batch.weights.view(rows, length, -1, 3)
        is_mark = (batch.tokens == label_mark) & (batch.documents == PREFIX)
        # Markers first, in order; positions of other tokens follow.
        marks = (~is_mark).to(torch.int8).argsort(dim=1, stable=True)[:, : wanted.shape[2]]
        asked = is_mark.gather(1, marks)
        scores = tagger(batch.tokens, batch.documents, marks)
        counts = ((batch.documents == TEXT)[:, :, None] & asked[:, None, :])[..., None].expand_as(scores)
        weight = torch.tensor(POSITIVE_WEIGHT, device=scores.device)
        each = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none", pos_weight=weight)
        return each[counts].sum() / wanted[counts].sum().clamp_min(1.0) / 3

    return loss


@torch.no_grad()
def tag_texts(
    tagger: Tagger, tokenizer: Tokenizer, texts: list[Tagged], device: torch.device
) -> list[list[Entity]]:
    """The extracted entities, text by text."""
    found: list[list[Entity]] = []
    own = HeadraceTokenizer(tokenizer, bos_id=BEGIN_ID)
    for text in texts:
        encoded = labeled(own, text.text, text.labels)
        tokens = torch.tensor([encoded.ids], device=device)
        scores = tagger(tokens, torch.ones_like(tokens), torch.tensor([encoded.marks], device=device))
        chances = scores[0, encoded.begin :].sigmoid().cpu().numpy()
        found.append(entities(chances, encoded, text.labels))
    return found


def entities(chances: np.ndarray, encoded: Labeled, labels: Sequence[str]) -> list[Entity]:
    """Entities from the scores [tokens, labels, 3] of a text's tokens."""
    spans = best_spans(chances, THRESHOLD, LONGEST_SPAN)
    places = [(encoded.characters[span.first][0], encoded.characters[span.last][1]) for span in spans]
    return [Entity(*place, labels[span.label]) for place, span in zip(places, spans, strict=True)]
