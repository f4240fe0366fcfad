"""Baselines for the encoders: TF-IDF with logistic regression, and lookup of strings seen in training."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from data.entities import Entity, Tagged
from data.intents import Remark
from nearness import Encode
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier

_OUTSIDE = "O"


def most_frequent(learned: Sequence[Remark], asked: Sequence[Remark]) -> float:
    """Accuracy of always predicting the most frequent intent."""
    [(intent, _)] = Counter(intent for _, intent in learned).most_common(1)
    return sum(mine == intent for _, mine in asked) / len(asked)


def tfidf_regression(learned: Sequence[Remark], asked: Sequence[Remark]) -> float:
    """Accuracy of logistic regression over words and word pairs."""
    terms = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = LogisticRegression(C=20.0, max_iter=300)
    model.fit(terms.fit_transform([text for text, _ in learned]), [intent for _, intent in learned])
    return float(model.score(terms.transform([text for text, _ in asked]), [intent for _, intent in asked]))


def tfidf_vectors(texts: Sequence[str]) -> Encode:
    """TF-IDF vectors of texts over character n-grams, fitted on `texts`."""
    terms = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True, max_features=20_000)
    terms.fit(texts)
    return lambda asked: terms.transform(asked).toarray().astype(np.float32)


def seen_before(learned: Sequence[Tagged], texts: Sequence[Tagged]) -> list[list[Entity]]:
    """For each text, the longest word sequences that were an entity in `learned`, with their usual label."""
    labels: dict[str, Counter[str]] = {}
    for text in learned:
        for entity in text.entities:
            labels.setdefault(text.text[entity.start : entity.end], Counter())[entity.label] += 1
    usual = {words: counts.most_common(1)[0][0] for words, counts in labels.items()}
    return [_runs(text, usual) for text in texts]


def _runs(text: Tagged, usual: dict[str, str]) -> list[Entity]:
    words = _words(text.text)
    found: list[Entity] = []
    at = 0
    while at < len(words):
        for last in range(min(at + 8, len(words)) - 1, at - 1, -1):
            start, end = words[at][0], words[last][1]
            if text.text[start:end] in usual:
                found.append(Entity(start, end, usual[text.text[start:end]]))
                at = last
                break
        at += 1
    return found


def regression_tagger(learned: Sequence[Tagged], texts: Sequence[Tagged]) -> list[list[Entity]]:
    """Logistic regression per word over features of it and its neighbors; runs of one label are entities."""
    columns = [TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), lowercase=False) for _ in range(3)]
    rows = [row for text in learned for row in _neighbors(text.text)]
    marks = [_mark(text, *place) for text in learned for place in _words(text.text)]
    features = hstack([c.fit_transform([row[i] for row in rows]) for i, c in enumerate(columns)]).tocsr()
    model = SGDClassifier(loss="log_loss", alpha=1e-6, max_iter=30, random_state=0)
    model.fit(features, marks)
    found: list[list[Entity]] = []
    for text in texts:
        around = _neighbors(text.text)
        parts = hstack([c.transform([row[i] for row in around]) for i, c in enumerate(columns)]).tocsr()
        found.append(_joined(_words(text.text), list(model.predict(parts)) if around else []))
    return found


def _joined(words: list[tuple[int, int]], marks: list[str]) -> list[Entity]:
    entities: list[Entity] = []
    before = _OUTSIDE
    for (start, end), mark in zip(words, marks, strict=True):
        if mark != _OUTSIDE and mark == before:
            entities[-1] = Entity(entities[-1].start, end, mark)
        elif mark != _OUTSIDE:
            entities.append(Entity(start, end, mark))
        before = mark
    return entities


def _mark(text: Tagged, start: int, end: int) -> str:
    return next((e.label for e in text.entities if e.start < end and start < e.end), _OUTSIDE)


def _words(text: str) -> list[tuple[int, int]]:
    """Words, and punctuation marks at their ends, as characters [start, end)."""
    places: list[tuple[int, int]] = []
    at = 0
    for word in text.split():
        start = text.index(word, at)
        end = at = start + len(word)
        bare = word.rstrip(".,;:!?")
        if bare and bare != word:
            places += [(start, start + len(bare)), (start + len(bare), end)]
        else:
            places.append((start, end))
    return places


def _neighbors(text: str) -> list[tuple[str, str, str]]:
    words = ["", *(text[start:end] for start, end in _words(text)), ""]
    return list(zip(words[1:-1], words[:-2], words[2:], strict=True))
