"""The reranker: question and passage in one encoder, one score; a question's own passage against others."""

from collections.abc import Sequence

import numpy as np
import torch
from data.passages import PassageSources, Question
from decoder import Decoder, Shape
from mixture import Batch
from objective import Objective
from sklearn.feature_extraction.text import TfidfVectorizer
from stream import BEGIN_ID, END_ID
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

SHARES = {"headings": 0.3, "sentences": 0.2, "prose": 0.2, "shell": 0.2, "sql": 0.1}
PASSAGES = 8  # for each question in training: its own first
SIMILAR = 30  # passages that share the most words with a question are its hard wrong answers
HARD = 5  # of the wrong answers
LONGEST = 160  # tokens of question and passage; what is beyond is cut, in training


class Reranker(nn.Module):
    """The score of a pair is a product with the state of the last token, which sees all others (as
    LlamaForSequenceClassification, with attention to both sides)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.decoder = Decoder(shape)
        self.score = nn.Linear(shape.hidden, 1, bias=False)

    def initialize(self, generator: torch.Generator) -> None:
        """Initialize the decoder and the score."""
        self.decoder.initialize(generator)
        nn.init.normal_(self.score.weight, 0.0, self.shape.hidden**-0.5, generator=generator)

    def forward(self, tokens: Tensor, documents: Tensor) -> Tensor:
        """Scores [rows] of tokens [rows, length]; `documents` is 0 for padding."""
        own = documents > 0
        with torch.autocast(tokens.device.type, torch.bfloat16):
            states = self.decoder.states(tokens, own[:, None, None, :])
        last = own.sum(1) - 1
        return self.score(states[torch.arange(len(last)), last].float())[:, 0]


def rank_objective(reranker: Reranker) -> Objective:
    """Cross entropy of a question's own passage, the first, among its PASSAGES."""

    def loss(batch: Batch) -> Tensor:
        scores = reranker(batch.tokens, batch.documents).view(-1, PASSAGES)
        return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))

    return loss


class RankBatches:
    """Draws questions, each with its passage, similar ones and others of its source."""

    def __init__(self, sources: PassageSources, tokenizer: Tokenizer) -> None:
        self._sources = sources.learned
        self._tokenizer = tokenizer
        self._similar = {name: similar(questions) for name, questions in self._sources.items()}

    def batch(self, key: tuple[int, int], rows: int, length: int) -> Batch:
        """`rows` pairs, PASSAGES for each question: a function of `key`."""
        random = np.random.default_rng(key)
        pairs: list[tuple[str, str]] = []
        names, bounds = list(SHARES), np.cumsum(list(SHARES.values()))
        for _ in range(rows // PASSAGES):
            name = names[min(int(np.searchsorted(bounds, random.random())), len(names) - 1)]
            questions = self._sources[name]
            at = int(random.integers(len(questions)))
            hard = random.permutation(self._similar[name][at])[:HARD]
            others = random.integers(len(questions), size=PASSAGES)
            wrong = [int(other) for other in (*hard, *others) if other != at][: PASSAGES - 1]
            pairs += [(questions[at].text, questions[other].passage) for other in (at, *wrong)]
        return Batch(*padded_pairs(self._tokenizer, pairs, LONGEST), torch.ones(len(pairs), 1))


def similar(questions: Sequence[Question]) -> np.ndarray:
    """For each question the SIMILAR passages but its own that share the most words with it."""
    return nearest([one.text for one in questions], [one.passage for one in questions], SIMILAR, own=False)


def nearest(texts: Sequence[str], passages: Sequence[str], count: int, *, own: bool = True) -> np.ndarray:
    """Indices [texts, count] of the passages nearest by TF-IDF, the nearest first; without `own`, those of
    the texts' own passages are left out."""
    terms = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 1), token_pattern=r"\w+")
    found = terms.fit_transform(passages)
    asked = terms.transform(texts)
    rows: list[np.ndarray] = []
    for begin in range(0, len(texts), 256):
        scores = (asked[begin : begin + 256] @ found.T).toarray()
        if not own:
            scores[np.arange(len(scores)), begin + np.arange(len(scores))] = -1
        top = np.argpartition(-scores, count, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(scores, top, 1), axis=1, kind="stable")
        rows.append(np.take_along_axis(top, order, 1))
    return np.concatenate(rows)


def padded_pairs(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], longest: int
) -> tuple[Tensor, Tensor]:
    """Tokens [pairs, longest], `<s> question </s> passage </s>`, and a mask without padding."""
    rows: list[list[int]] = []
    for first, second in pairs:
        question, passage = (tokenizer.encode(text, add_special_tokens=False).ids for text in (first, second))
        question = [BEGIN_ID, *question[: longest // 2], END_ID]
        rows.append([*question, *passage[: longest - len(question) - 1], END_ID])
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    documents = torch.zeros_like(tokens)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = torch.tensor(ids)
        documents[row, : len(ids)] = 1
    return tokens, documents


@torch.no_grad()
def best_of(
    reranker: Reranker,
    tokenizer: Tokenizer,
    asked: Sequence[Question],
    found: np.ndarray,
    device: torch.device,
) -> float:
    """The share of questions whose own passage has the highest score of `found` [questions, passages],
    which holds the questions' own: indices into `asked`."""
    right = 0
    for at, passages in enumerate(found):
        pairs = [(asked[at].text, asked[other].passage) for other in passages]
        tokens, documents = padded_pairs(tokenizer, pairs, LONGEST)
        scores = reranker(tokens.to(device), documents.to(device))
        right += int(passages[int(scores.argmax())] == at)
    return right / len(found)
