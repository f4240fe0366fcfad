"""GLiNER 2 checkpoints: entities by labels, and classes of whole texts, each written as a task in front.

After GLiNER2 (Zaratiana et al. 2025). The words, the input and the scores are those of the package `gliner2`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from headrace.ops.value import Array
from headrace.tasks.entity_finders.finder import Frame, Units, check_tokens, id_of, word_units
from headrace.tasks.entity_finders.gliner import spans_above, word_states
from headrace.tasks.entity_finders.gliner2_scores import label_queries
from headrace.tasks.entity_finders.gliner_scores import span_scores
from headrace.tasks.entity_finders.spans import Candidates, check_finite, gathered, joined
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.gliner2_head import Gliner2Head, read_gliner2_head

_TASK_MARK, _TEXT_MARK = "[P]", "[SEP_TEXT]"
_ENTITY_MARK, _CLASS_MARK = "[E]", "[L]"
_ENTITIES, _CLASSES = "entities", "classification"
_ENDS = (".", "!", "?")
"""What a text ends with: else the package adds the first, and so it was trained."""
_WEB = r"https?://\S+|www\.\S+"
_MAIL_NAME = re.compile(r"[a-z0-9._%+-]+", re.IGNORECASE)
_MAIL_HOST = re.compile(r"@[a-z0-9.-]+\.[a-z]{2,}", re.IGNORECASE)
_IS_WEB = re.compile(_WEB, re.IGNORECASE)


@cache
def _word_pattern() -> re.Pattern[str]:
    """An address of the web, a name of a user, a word with its marks and joiners, or a sign."""
    codes = (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0))  # where marks are
    marks = "".join(chr(code) for code in codes if unicodedata.category(chr(code))[0] == "M")
    letter = rf"[\w{marks}\u200c\u200d]"
    return re.compile(rf"(?:{_WEB})|@[a-z0-9_]+|{letter}+(?:[-_]{letter}+)*|\S", re.IGNORECASE)


def _mails(text: str) -> Iterator[tuple[int, int, int]]:
    """Of each address of mail where it begins at the earliest, where its sign is, and where it ends. Each
    part of the text is read once, where the package's own pattern takes time in its square."""
    for run in _MAIL_NAME.finditer(text):
        if (found := _MAIL_HOST.match(text, run.end())) is not None:
            yield run.start(), run.end(), found.end()


def word_places(text: str) -> list[tuple[int, int]]:
    """The words of a text as the package `gliner2` cuts it: also addresses of the web and of mail."""
    pattern, places = _word_pattern(), list[tuple[int, int]]()
    if "@" not in text:
        return [found.span() for found in pattern.finditer(text)]
    mails, at = _mails(text), 0
    begins, sign, ends = next(mails, (len(text), len(text), 0))
    while (found := pattern.search(text, at)) is not None:
        start, end = found.span()
        while start >= sign and sign < len(text):
            begins, sign, ends = next(mails, (len(text), len(text), 0))
        if begins <= start < sign and not _IS_WEB.match(text, start):
            end = ends
        places.append((start, end))
        at = end
    return places


class Gliner2Finder:
    """The head of a GLiNER 2 checkpoint on an encoder with `states` numbers per token. Raises
    UnsupportedModel, CorruptFile."""

    window: int | None = None

    def __init__(self, folder: Path, states: int) -> None:
        self._head: Gliner2Head = read_gliner2_head(folder, states)
        self.most_units: int | None = self._head.settings.longest_text

    def frame(self, tokenizer: Tokenizer, labels: Sequence[str]) -> Frame:
        """See `Finder.frame`; the first of `marks` is that of the task. InvalidRequest for a label without
        tokens."""
        return _frame(tokenizer, _ENTITIES, _ENTITY_MARK, labels)

    def class_frame(self, tokenizer: Tokenizer, labels: Sequence[str]) -> Frame:
        """The same for classes of a whole text."""
        return _frame(tokenizer, _CLASSES, _CLASS_MARK, labels)

    def units(self, tokenizer: Tokenizer, text: str) -> Units:
        """See `Finder.units`: a unit is a word, or a sign between words; the last one may be a full stop that
        the text does not have, of no characters."""
        places = word_places(text)
        words = [text[start:end].lower() for start, end in places]
        if places and not text.endswith(_ENDS):
            words.append(_ENDS[0])
            places.append((places[-1][1], places[-1][1]))
        return word_units(tokenizer, words, places)

    def find(
        self,
        states: Sequence[Array],
        frame: Frame,
        parts: Sequence[Units],
        threshold: float,
        *,
        every_label: bool,
    ) -> list[Candidates]:
        """See `Finder.find`. Nothing where the model counts no entities."""
        found: list[Candidates] = []
        for one, part in zip(states, parts, strict=True):
            mark, *labels = frame.marks
            if not check_finite(self._head.count(one[mark][None]))[0].argmax():
                found.append(joined([]))
                continue
            begin, kind = len(frame.before), self._head.settings.subtokens
            words = word_states(one[begin : begin + len(part.ids)], np.array(part.starts), kind)
            queries = label_queries(self._head.label, one[labels])[None]
            longest = self._head.settings.longest_span
            [scores] = span_scores(self._head.spans, [words], queries, longest)
            found.append(gathered(spans_above(check_finite(scores), threshold), every_label=every_label))
        return found

    def class_logits(self, states: Array, frame: Frame) -> Array:
        """Of the states [tokens, hidden] of a `class_frame` with its text the logits [labels]."""
        return check_finite(self._head.classifier(states[frame.marks[1:]]))[:, 0]


def _frame(tokenizer: Tokenizer, task: str, label_mark: str, labels: Sequence[str]) -> Frame:
    opening, closing, name = tokenizer.encode_words(["(", ")", task])
    before = [*opening, id_of(tokenizer, _TASK_MARK), *name, *opening]
    marks, mark = [len(opening)], id_of(tokenizer, label_mark)
    for label, ids in zip(labels, tokenizer.encode_words(labels), strict=True):
        check_tokens(label, ids)
        marks.append(len(before))
        before += [mark, *ids]
    return Frame([*before, *closing, *closing, id_of(tokenizer, _TEXT_MARK)], [], marks, tuple(labels))
