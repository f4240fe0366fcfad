"""The reranker: each token of a question looks for its nearest token of a passage (late interaction)."""

from collections.abc import Sequence

import numpy as np
import torch
from data.passages import PassageSources, Question
from decoder import Decoder, Shape
from mixture import Batch
from objective import Objective
from stream import BEGIN_ID, END_ID
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

SHARES = {"headings": 0.3, "sentences": 0.2, "prose": 0.2, "shell": 0.2, "sql": 0.1}
WIDTH = 96  # of a token's vector
SIMILAR = 30  # passages that share the most words with a question are its hard wrong answers
ROWS = 3  # for each question: itself, its passage, a similar one
LONGEST = 128  # tokens of a question or passage; what is beyond is cut, in training
TEMPERATURE = 0.03


class Reranker(nn.Module):
    """Vectors of tokens (ColBERT: Khattab and Zaharia 2020), with attention to both sides."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.decoder = Decoder(shape)
        self.linear = nn.Linear(shape.hidden, WIDTH, bias=False)

    def initialize(self, generator: torch.Generator) -> None:
        """Initialize the decoder and the projection."""
        self.decoder.initialize(generator)
        nn.init.normal_(self.linear.weight, 0.0, self.shape.hidden**-0.5, generator=generator)

    def forward(self, tokens: Tensor, documents: Tensor) -> Tensor:
        """Vectors [rows, length, WIDTH] of length 1; `documents` is 0 for padding, whose vectors are 0."""
        own = documents > 0
        with torch.autocast(tokens.device.type, torch.bfloat16):
            states = self.decoder.states(tokens, own[:, None, None, :])
        return F.normalize(self.linear(states.float()), dim=-1) * own[..., None]


def nearest_tokens(questions: Tensor, counts: Tensor, passages: Tensor) -> Tensor:
    """Scores [questions, passages]: the mean over a question's tokens of the nearest token's product.
    `questions` [Q, n, WIDTH] with `counts` [Q] tokens, `passages` [P, m, WIDTH]."""
    products = torch.einsum("qiw,pjw->qpij", questions, passages)
    return products.amax(-1).sum(-1) / counts[:, None]


def rank_objective(reranker: Reranker) -> Objective:
    """Cross entropy of a question's own passage among all of the batch."""

    def loss(batch: Batch) -> Tensor:
        vectors = reranker(batch.tokens, batch.documents)
        questions, own, similar = vectors[0::ROWS], vectors[1::ROWS], vectors[2::ROWS]
        counts = batch.documents[0::ROWS].sum(1)
        longest = int(counts.max())
        scores = nearest_tokens(questions[:, :longest], counts, torch.cat([own, similar])) / TEMPERATURE
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))

    return loss


class RankBatches:
    """Draws questions of one source, each with its passage and a similar one."""

    def __init__(self, sources: PassageSources, tokenizer: Tokenizer) -> None:
        self._sources = sources.learned
        self._tokenizer = tokenizer
        self._similar = {name: similar(questions) for name, questions in self._sources.items()}

    def batch(self, key: tuple[int, int], rows: int, length: int) -> Batch:
        """`rows` texts, ROWS for each question: a function of `key`."""
        random = np.random.default_rng(key)
        name = list(SHARES)[int(random.choice(len(SHARES), p=list(SHARES.values())))]
        questions = self._sources[name]
        chosen = random.choice(len(questions), rows // ROWS, replace=False)
        texts: list[str] = []
        for at in map(int, chosen):
            other = int(random.choice(self._similar[name][at]))
            texts += [questions[at].text, questions[at].passage, questions[other].passage]
        return Batch(*padded_texts(self._tokenizer, texts), torch.ones(len(texts), 1))


def similar(questions: Sequence[Question]) -> np.ndarray:
    """For each question the SIMILAR passages but its own that share the most words with it."""
    return nearest([one.text for one in questions], [one.passage for one in questions], SIMILAR, own=False)


def nearest(texts: Sequence[str], passages: Sequence[str], count: int, *, own: bool = True) -> np.ndarray:
    """Indices [texts, count] of the passages nearest by TF-IDF, the nearest first; without `own`, those of
    the texts' own passages are left out."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # who only exports needs none of it

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


def padded_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Tokens [texts, longest], `<s> text </s>`, and a mask without padding."""
    rows = [
        [BEGIN_ID, *encoding.ids[: LONGEST - 2], END_ID]
        for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)
    ]
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    documents = torch.zeros_like(tokens)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = torch.tensor(ids)
        documents[row, : len(ids)] = 1
    return tokens, documents


@torch.no_grad()
def first_share(
    reranker: Reranker, tokenizer: Tokenizer, asked: Sequence[Question], device: torch.device
) -> float:
    """The share of questions whose own passage has the highest score of all of theirs."""
    both: list[tuple[Tensor, Tensor]] = []
    for texts in ([one.text for one in asked], [one.passage for one in asked]):
        tokens, documents = padded_texts(tokenizer, texts)
        both.append((reranker(tokens.to(device), documents.to(device)), documents.sum(1).to(device)))
    (questions, counts), (passages, _) = both
    rows = [
        nearest_tokens(questions[at : at + 1, : int(counts[at])], counts[at : at + 1], passages)
        for at in range(len(questions))
    ]
    return float((torch.cat(rows).argmax(1) == torch.arange(len(rows), device=device)).float().mean())
