"""Answers that are made of parts of the question: which form they have, and how it is read and written.

Forms are an object of JSON (a key for each kind of part), a list of parts, a list of objects with a part and
its label, and a tag for each word. A form is learned from answers, and is right for those that it writes
again to the byte.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import InvalidRequest

LEAST_READ = 0.7
"""Part of the lessons that a form must write again."""
TRIED = 300
"""Lessons that forms are tried on."""
MAX_FIELDS = 24
LEAST_SEEN = 2
"""Lessons in which a key, a label or a constant must come: what came once may be somebody's secret."""
_WORD, _BLANK = re.compile(r"\w+|[^\w\s]"), re.compile(r"\S+")
_FENCED = re.compile(r"(```(?:json)?\n)(.*)(\n```)", re.DOTALL)
WordPlaces = list[tuple[int, int]]
"""Characters [start, end) of words."""


class PartSpan(Struct, frozen=True):
    """Words [first, end) that belong to a field, and how sure that is."""

    first: int
    end: int
    field: int
    score: float = 0.0


class AnswerField(Struct, frozen=True):
    """A kind of part. `many`: its value is a list; `absent` is the JSON where there is none, "" where the key
    is left out then; `is_number`: the part is written as a number."""

    name: str
    many: bool = False
    absent: str = "null"
    is_number: bool = False


class JsonStyle(Struct, frozen=True):
    """How JSON is written; `fence` are what stands around it."""

    indent: int | None = None
    comma: str = ", "
    colon: str = ": "
    is_ascii: bool = False
    fence: tuple[str, str] = ("", "")

    def write(self, value: object) -> str:
        """A value."""
        text = json.dumps(
            value, indent=self.indent, separators=(self.comma, self.colon), ensure_ascii=self.is_ascii
        )
        return self.fence[0] + text + self.fence[1]


STYLES = [
    *(JsonStyle(None, *pair, ascii) for pair, ascii in product(((", ", ": "), (",", ":")), (False, True))),
    *(JsonStyle(indent, ",", ": ", ascii) for indent, ascii in product((1, 2, 4), (False, True))),
]


class AnswerForm(Struct, frozen=True, kw_only=True):
    """The form of a task's answers. With `every` each mention of a part is a value of its own, else equal
    ones are one. Of a list of objects `keys` are those of the part and of its label, in their order, and
    `wrapper` that of the list, where it is not the whole answer."""

    kind: Literal["object", "texts", "labeled", "tags", "tag words"]
    fields: tuple[AnswerField, ...]
    style: JsonStyle = JsonStyle()
    every: bool = False
    keys: tuple[str, str] = ("", "")
    label_first: bool = False
    wrapper: str = ""

    @property
    def classes(self) -> int:
        """Of words: a tag each, or outside, and of each field the beginning and the inside."""
        return len(self.fields) if self.kind.startswith("tag") else 1 + 2 * len(self.fields)

    @property
    def constants(self) -> tuple[str, ...]:
        """What an answer can say that is no part of the question."""
        names = (*(one.name for one in self.fields), *self.keys, self.wrapper)
        return tuple(sorted({one for one in (*names, *(one.absent for one in self.fields)) if one}))

    @property
    def labels(self) -> list[str]:
        """The fields in words, for a model that reads them."""
        names = [re.sub(r"^[BIESLU]-", "", one.name) for one in self.fields]
        return list(
            dict.fromkeys(" ".join(re.findall(r"\w+", one.replace("_", " "))) or "part" for one in names)
        )

    def words(self, text: str) -> WordPlaces:
        """The words of a question."""
        pattern = _BLANK if self.kind.startswith("tag") else _WORD
        return [found.span() for found in pattern.finditer(text)]

    def marks(self, text: str, answer: str) -> list[int] | None:
        """The class of each word of a question by its answer; None where this form does not write it."""
        words, found = self.words(text), _parsed(answer)
        marks = self._tags(found, answer, words) if self.kind.startswith("tag") else None
        if not self.kind.startswith("tag"):
            wanted = self._wanted(found)
            marks = None if wanted is None else self._marked(text, words, wanted)
        return marks if marks is not None and self.write(text, words, marks) == answer.strip() else None

    def write(self, text: str, words: WordPlaces, marks: Sequence[int], scores: Sequence[float] = ()) -> str:
        """The answer to a question whose words have these classes; `scores` are the surest first."""
        if self.kind.startswith("tag"):
            tags = [self.fields[one].name for one in marks]
            return " ".join(tags) if self.kind == "tag words" else self.style.write(tags)
        spans = spans_of(marks, scores)
        said = [(one, text[words[one.first][0] : words[one.end - 1][1]]) for one in spans]
        if self.kind == "object":
            value: object = {}
            for number, field in enumerate(self.fields):
                own = [(one, part) for one, part in said if one.field == number]
                if own or field.absent:
                    cast("dict[str, object]", value)[field.name] = self._value(field, own)
        elif self.kind == "texts":
            value = self._distinct([part for _, part in said])
        else:
            pairs = self._distinct([(part, self.fields[one.field].name) for one, part in said])
            value = [self._labeled(*cast("tuple[str, str]", pair)) for pair in pairs]
            value = {self.wrapper: value} if self.wrapper else value
        return self.style.write(value)

    def _value(self, field: AnswerField, own: list[tuple[PartSpan, str]]) -> object:
        if not own:
            return json.loads(field.absent)
        if field.many:
            return self._distinct([part for _, part in own])
        part = max(own, key=lambda one: one[0].score)[1]  # of equally sure ones the first
        return int(part) if field.is_number and part.isdecimal() and len(part) < 16 else part

    def _distinct(self, values: Sequence[object]) -> list[object]:
        return list(values) if self.every else list(dict.fromkeys(values))

    def _labeled(self, part: str, label: str) -> dict[str, str]:
        pairs = [(self.keys[0], part), (self.keys[1], label)]
        return dict(pairs[::-1] if self.label_first else pairs)

    def _tags(self, found: Any, answer: str, words: WordPlaces) -> list[int] | None:
        tags = answer.split() if self.kind == "tag words" else found
        places = {one.name: place for place, one in enumerate(self.fields)}
        if not isinstance(tags, list) or len(cast("list[Any]", tags)) != len(words):
            return None
        known = [places.get(str(one)) for one in cast("list[Any]", tags)]
        return None if None in known else cast("list[int]", known)

    def _wanted(self, found: Any) -> list[tuple[int, str]] | None:
        """Parts that an answer has, each with its field."""
        places = {one.name: place for place, one in enumerate(self.fields)}
        if self.kind == "labeled":
            rows: Any = cast("dict[str, Any]", found).get(self.wrapper) if self._is_wrapped(found) else found
            if not isinstance(rows, list):
                return None
            wanted = list[tuple[int, str]]()
            for row in cast("list[Any]", rows):
                part, label = (
                    (cast("dict[str, Any]", row).get(key) for key in self.keys)
                    if isinstance(row, dict)
                    else (None, None)
                )
                if not isinstance(part, str) or not isinstance(label, str) or label not in places:
                    return None
                wanted.append((places[label], part))
            return wanted
        if self.kind == "texts":
            found = {self.fields[0].name: found}
        if not isinstance(found, dict):
            return None
        wanted = list[tuple[int, str]]()
        for name, value in cast("dict[str, Any]", found).items():
            if name not in places:
                return None
            if json.dumps(value) != self.fields[places[name]].absent:
                wanted += [(places[name], part) for part in _parts(value)]
        return wanted

    def _is_wrapped(self, found: Any) -> bool:
        return bool(self.wrapper) and isinstance(found, dict)

    def _marked(self, text: str, words: WordPlaces, wanted: list[tuple[int, str]]) -> list[int] | None:
        first = {start: place for place, (start, _) in enumerate(words)}
        last = {end: place + 1 for place, (_, end) in enumerate(words)}
        marks, after = [0] * len(words), Counter[int]()
        for field, part in wanted:
            found = [
                (first[at], last[at + len(part)])
                for at in _occurrences(text, part)
                if at in first and at + len(part) in last
            ]
            free = [one for one in found if not any(marks[slice(*one)]) and one[0] >= after[field]]
            if self.every:
                free = free[:1]
                after[field] = free[0][1] if free else 0
            if not free:
                return None
            for begin, end in free:
                marks[begin:end] = [1 + 2 * field, *[2 + 2 * field] * (end - begin - 1)]
        return marks


def spans_of(marks: Sequence[int], scores: Sequence[float] = ()) -> list[PartSpan]:
    """Of classes of words; an inside without a beginning begins one."""
    found: list[PartSpan] = []
    for place, mark in enumerate(marks):
        if not mark:
            continue
        field, score = (mark - 1) // 2, scores[place] if scores else 0.0
        last = found[-1] if found else None
        if mark % 2 == 0 and last is not None and last.end == place and last.field == field:
            found[-1] = replace(last, end=place + 1, score=min(last.score, score))
        else:
            found.append(PartSpan(place, place + 1, field, score))
    return found


def learned_form(lessons: Sequence[tuple[str, str]]) -> AnswerForm:
    """The form that writes most answers of these pairs (question, answer) again. InvalidRequest where none
    writes enough of them."""
    tried = lessons[:: max(len(lessons) // TRIED, 1)]
    makers: tuple[Callable[[Sequence[tuple[str, Any]]], AnswerForm | None], ...]
    makers = (_object_form, _labeled_form, _texts_form, _tags_form)
    parsed = [(text, _parsed(answer)) for text, answer in tried]
    answers = [answer for _, answer in tried]
    forms = [make([one for one in parsed if one[1] is not None]) for make in makers]
    forms.append(_tag_words_form(tried))
    best, most = None, 0
    for form, every in product((one for one in forms if one is not None), (False, True)):
        wanted = replace(form, every=every, style=_style(answers))
        count = sum(wanted.marks(*one) is not None for one in tried)
        if count > most:
            best, most = wanted, count
    if best is None or most < LEAST_READ * len(tried):
        raise InvalidRequest(
            f"answers are not made of parts of their questions in one form: {most:,} of {len(tried):,} are",
            param="task",
        )
    return best


def _parsed(answer: str) -> Any:
    """None where it is no JSON."""
    fenced = _FENCED.fullmatch(answer.strip())
    try:
        return json.loads(answer if fenced is None else fenced[2])
    except (ValueError, RecursionError):
        return None


def _style(answers: Sequence[str]) -> JsonStyle:
    """The one that most answers have."""
    counts = Counter[JsonStyle]()
    for answer in answers[:50]:
        found, fenced = _parsed(answer), _FENCED.fullmatch(answer.strip())
        if found is None:
            continue
        fence = ("", "") if fenced is None else (fenced[1], fenced[3])
        for style in STYLES:
            wanted = replace(style, fence=fence)
            counts[wanted] += wanted.write(found) == answer.strip()
    return counts.most_common(1)[0][0] if counts else JsonStyle()


def _parts(value: Any) -> list[str]:
    """The texts of a value, which may be none."""
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [str(one) for one in values if isinstance(one, str | int) and not isinstance(one, bool)]


def _occurrences(text: str, part: str) -> list[int]:
    found, at = list[int](), text.find(part) if part else -1
    while at >= 0:
        found.append(at)
        at = text.find(part, at + len(part))
    return found


def _seen(counts: Counter[str]) -> list[str]:
    return [one for one, count in counts.items() if count >= LEAST_SEEN][: MAX_FIELDS + 1]


def _object_form(parsed: Sequence[tuple[str, Any]]) -> AnswerForm | None:
    objects = [(text, cast("dict[str, Any]", one)) for text, one in parsed if isinstance(one, dict)]
    names = _seen(Counter(name for _, one in objects for name in one))
    if not names or len(names) > MAX_FIELDS:
        return None
    return AnswerForm(kind="object", fields=tuple(_field(name, objects) for name in names))


def _field(name: str, objects: Sequence[tuple[str, dict[str, Any]]]) -> AnswerField:
    """Whether its values are lists or numbers, and what stands where no part of the question does."""
    absent, lists, numbers = Counter[str](), 0, 0
    for text, one in objects:
        value = one.get(name)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        is_part = bool(value) and all(part in text for part in _parts(value)) and bool(_parts(value))
        lists += isinstance(value, list)
        numbers += is_part and is_number
        if not is_part:
            absent[json.dumps(value) if name in one else ""] += 1
    many = lists > 0
    common = next((one for one, count in absent.most_common(1) if count >= LEAST_SEEN), None)
    return AnswerField(name, many, ("[]" if many else "null") if common is None else common, numbers > 0)


def _texts_form(parsed: Sequence[tuple[str, Any]]) -> AnswerForm | None:
    if not any(isinstance(one, list) for _, one in parsed):
        return None
    return AnswerForm(kind="texts", fields=(AnswerField("", True, "[]"),))


def _labeled_form(parsed: Sequence[tuple[str, Any]]) -> AnswerForm | None:
    """Lists of objects with two texts, one of which is a part of the question; the other one is its label."""
    wrappers = Counter(
        next(iter(cast("dict[str, Any]", one)))
        for _, one in parsed
        if isinstance(one, dict) and len(cast("Any", one)) == 1
    )
    wrapper = wrappers.most_common(1)[0][0] if wrappers.total() > len(parsed) / 2 else ""
    rows: list[tuple[str, dict[str, Any]]] = []
    for text, one in parsed:
        found: Any = cast("dict[str, Any]", one).get(wrapper) if wrapper and isinstance(one, dict) else one
        if isinstance(found, list):
            rows += [
                (text, cast("dict[str, Any]", row))
                for row in cast("list[Any]", found)
                if isinstance(row, dict)
            ]
    names = Counter(tuple(row) for _, row in rows)
    keys = names.most_common(1)[0][0] if names else ()
    if len(keys) != 2:
        return None
    texts = [
        (text, row)
        for text, row in rows
        if tuple(row) == keys and all(isinstance(row[key], str) for key in keys)
    ]
    inside = [sum(row[key] in text for text, row in texts) for key in keys]
    part = int(inside[1] > inside[0])
    labels = _seen(Counter(str(row[keys[1 - part]]) for _, row in texts))
    if not labels or len(labels) > MAX_FIELDS:
        return None
    return AnswerForm(
        kind="labeled",
        fields=tuple(AnswerField(label) for label in sorted(labels)),
        keys=(keys[part], keys[1 - part]),
        label_first=part == 1,
        wrapper=wrapper,
    )


def _tags_form(parsed: Sequence[tuple[str, Any]]) -> AnswerForm | None:
    rows = [
        [str(tag) for tag in cast("list[Any]", one)]
        for text, one in parsed
        if isinstance(one, list) and len(cast("list[Any]", one)) == len(text.split())
    ]
    return _of_tags("tags", rows)


def _tag_words_form(lessons: Sequence[tuple[str, str]]) -> AnswerForm | None:
    return _of_tags(
        "tag words", [answer.split() for text, answer in lessons if len(answer.split()) == len(text.split())]
    )


def _of_tags(kind: Literal["tags", "tag words"], rows: Sequence[list[str]]) -> AnswerForm | None:
    tags = _seen(Counter(tag for row in rows for tag in set(row)))
    if len(tags) < 2 or len(tags) > 2 * MAX_FIELDS:
        return None
    return AnswerForm(kind=kind, fields=tuple(AnswerField(tag) for tag in sorted(tags)))
