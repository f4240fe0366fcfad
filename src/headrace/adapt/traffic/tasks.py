"""Tasks and, within them, groups of questions that are alike: found, named, and kept over days."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar, cast

import numpy as np
from msgspec import Struct

from headrace.adapt.traffic.examples import ExampleStore, TaskRow
from headrace.adapt.traffic.kmeans import (
    AS_STABLE,
    TRIED,
    Floats,
    Places,
    candidates,
    evened,
    kmeans,
    stability,
)
from headrace.gateway.text_vector import text_vector
from headrace.storage.database import Database
from headrace.tasks.pii.operators import PLACEHOLDER

LEAST_EXAMPLES = 40
"""Of a task that is divided into groups."""
MAX_GROUPS = 128
MOST_GROUPED = 20_000
"""Examples of a task that are grouped, the newest; others take the group of the nearest centroid."""
SAME = 0.6
"""Cosine of two centroids from which on they may be the same group, on another day."""
EMBEDDED = 512
"""Texts at a time, each in a transaction of its own."""
WORDS = 4
_WORD = re.compile(r"[^\W\d_]{3,}")
_COMMON = frozenset(
    word
    for line in (
        "the and for are was were you your with that this have has had can could would should will what when",
        "where which who why how from not but its our their they them then than there here been being did",
        "does doing done get got out any all also into just like need want please about",
    )
    for word in line.split()
)
Embed = Callable[[Sequence[str]], Floats]
Name = TypeVar("Name", bound=Hashable)


class GroupView(Struct, frozen=True):
    """Questions of a task that are alike."""

    number: int
    size: int
    name: str


class TaskView(Struct, frozen=True, kw_only=True):
    """A task as it is shown. `evaluator` is what compares its students with what answers today."""

    id: str
    name: str
    key_group: str
    endpoint: str
    instructions: str
    tools: str
    examples: int
    usd: float
    per_day: float
    groups: list[GroupView]
    evaluator: str


def task_views(store: ExampleStore) -> list[TaskView]:
    """All tasks, those that cost most first."""
    groups: dict[str, list[GroupView]] = {}
    if store.database.exists:
        rows = store.database.query("SELECT task, number, size, name FROM task_groups ORDER BY size DESC")
        for task, *row in rows:
            groups.setdefault(str(task), []).append(GroupView(*row))  # type: ignore[arg-type]
    return [_view(one, groups.get(one.id, [])) for one in store.tasks()]


def _view(one: TaskRow, groups: list[GroupView]) -> TaskView:
    days = max((one.last_s - one.first_s) / 86_400, 1 / 24)
    return TaskView(
        id=one.id,
        name=one.name or one.template[:60] or one.tools or "conversations",
        key_group=one.key_group,
        endpoint=one.endpoint,
        instructions=one.template,
        tools=one.tools,
        examples=one.examples,
        usd=one.nano_usd / 1e9,
        per_day=one.examples / days,
        groups=groups,
        evaluator=one.evaluator or "auto",
    )


def embed_examples(database: Database, encoder: str, embed: Embed, *, task: str | None = None) -> int:
    """Give every example its vector that has none of this encoder; how many they were. What is embedded stays
    so when this is interrupted."""
    done = 0
    while rows := without_vector(database, encoder, task):
        save_vectors(database, encoder, rows, unit(embed([text for _, text in rows])))
        done += len(rows)
    return done


def without_vector(database: Database, encoder: str, task: str | None) -> list[tuple[int, str]]:
    """Some examples, of a task or of all, that have no vector of the encoder: ids and questions."""
    return database.query(  # type: ignore[return-value]
        "SELECT id, question FROM examples WHERE (encoder IS NULL OR encoder != ?) AND question != '' "
        "AND (? IS NULL OR task = ?) ORDER BY id LIMIT ?",
        (encoder, task, task, EMBEDDED),
    )


def save_vectors(database: Database, encoder: str, rows: Sequence[tuple[int, str]], vectors: Floats) -> None:
    """Keep vectors of length 1 of examples."""
    database.execute_many(
        "UPDATE examples SET encoder = ?, vector = ? WHERE id = ?",
        [
            (encoder, vector.astype(np.float32).tobytes(), id)
            for (id, _), vector in zip(rows, vectors, strict=True)
        ],
    )


def vectors_of(rows: Sequence[object]) -> Floats:
    """Vectors [rows, size] as they are stored."""
    return np.stack([np.frombuffer(cast("bytes", data), np.float32) for data in rows])


def unit(vectors: Floats) -> Floats:
    """Vectors of length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def find_groups(
    store: ExampleStore, encoder: str, embed: Embed, shown: Callable[[str], None] = lambda text: None
) -> None:
    """Divide the questions of each task into groups, and name tasks and groups."""
    embed_examples(store.database, encoder, embed)
    tasks = store.tasks()
    words = {one.id: Counter[str]() for one in tasks}
    for number, task in enumerate(tasks, 1):
        shown(f"task {number:,} of {len(tasks):,}")
        rows = store.database.query(
            "SELECT id, question, vector FROM examples WHERE task = ? AND encoder = ? "
            "ORDER BY id DESC LIMIT ?",
            (task.id, encoder, MOST_GROUPED),
        )
        texts = [str(text) for _, text, _ in rows]
        words[task.id] = counted([task.template, *texts])
        if len(rows) >= LEAST_EXAMPLES:
            vectors = vectors_of([data for _, _, data in rows])
            found = grouped(features(vectors, texts))
            ids = [int(id) for id, _, _ in rows]  # type: ignore[call-overload]
            _save(store.database, task.id, encoder, ids, texts, vectors, found)
    names = salient(words)
    for task in tasks:
        store.database.execute(
            "UPDATE tasks SET name = ? WHERE id = ? AND is_named = 0", (names[task.id], task.id)
        )


def features(vectors: Floats, texts: Sequence[str]) -> Floats:
    """What questions are grouped by [texts, size]: the encoder's vectors and those of words, half each.

    On a domain that the encoder was not trained on, words tell questions apart that it does not: 60 groups of
    5,000 texts of Banking77 have an adjusted mutual information of 0.49 without them, 0.55 with them.
    """
    words = np.stack([text_vector(text) for text in texts])
    return np.hstack([evened(vectors), evened(words)]) / np.float32(2**0.5)


def grouped(found: Floats, seed: int = 0) -> Places:
    """The group of each of vectors [n, size] of length 1, with as many groups as are stable."""
    few = found
    if len(found) > TRIED:
        few = found[np.random.default_rng(seed).choice(len(found), TRIED, replace=False)]
    tried = candidates(len(few), MAX_GROUPS)
    if not tried:
        return np.zeros(len(found), np.intp)
    stable = [stability(few, count, seed) for count in tried]
    best = max(count for count, one in zip(tried, stable, strict=True) if one >= AS_STABLE * max(stable))
    places = kmeans(found, best, seed, starts=3)[1]
    return np.unique(places, return_inverse=True)[1]  # none is empty, however many vectors are equal


def _save(
    database: Database,
    task: str,
    encoder: str,
    ids: Sequence[int],
    texts: Sequence[str],
    vectors: Floats,
    places: Places,
) -> None:
    """Keep groups, all of them or none. Those that were there before keep their numbers."""
    count, at_places = int(places.max()) + 1, cast("list[int]", places.tolist())
    centroids = unit(np.stack([vectors[places == place].mean(0) for place in range(count)]))
    names = salient(
        {
            place: counted([text for text, at in zip(texts, at_places, strict=True) if at == place])
            for place in range(count)
        }
    )
    with database.transaction() as connection:
        before = connection.execute(
            "SELECT number, centroid FROM task_groups WHERE task = ? AND encoder = ? ORDER BY number",
            (task, encoder),
        ).fetchall()
        known = {number: np.frombuffer(data, np.float32) for number, data in before}
        numbers = matched(centroids, known)
        connection.execute("DELETE FROM task_groups WHERE task = ?", (task,))
        connection.executemany(
            "INSERT INTO task_groups VALUES (?, ?, ?, ?, ?, ?)",
            [
                (
                    *(task, numbers[place], names[place], int((places == place).sum()), encoder),
                    centroids[place].astype(np.float32).tobytes(),
                )
                for place in range(count)
            ],
        )
        connection.executemany(
            "UPDATE examples SET task_group = ? WHERE id = ?",
            [(numbers[place], id) for id, place in zip(ids, at_places, strict=True)],
        )


def matched(centroids: Floats, known: Mapping[int, Floats]) -> list[int]:
    """The number of each centroid: that of the known one that it continues, the likest pairs first; others
    get numbers that were never used among the known."""
    numbers: dict[int, int] = {}
    if known:
        names = list(known)
        near = centroids @ np.stack([known[name] for name in names]).T
        for flat in np.argsort(-near, axis=None):
            place, other = divmod(int(flat), len(names))
            if near[place, other] < SAME:
                break
            if place not in numbers and names[other] not in numbers.values():
                numbers[place] = names[other]
    fresh = max(known, default=0)
    for place in range(len(centroids)):
        if place not in numbers:
            fresh += 1
            numbers[place] = fresh
    return [numbers[place] for place in range(len(centroids))]


def counted(texts: Sequence[str]) -> Counter[str]:
    """In how many of the texts each word is. Kinds of personal data are no words."""
    found = Counter[str]()
    for text in texts:
        said = PLACEHOLDER.sub(" ", text).casefold()
        found.update({word for word in _WORD.findall(said) if word not in _COMMON})
    return found


def salient(words: Mapping[Name, Counter[str]]) -> dict[Name, str]:
    """Of each class the words that it has more often than the others (class-based TF-IDF, Grootendorst
    2022)."""
    everywhere = Counter[str]()
    for one in words.values():
        everywhere.update(one)
    mean = everywhere.total() / max(len(words), 1)
    names: dict[Name, str] = {}
    for name, one in words.items():
        total = max(one.total(), 1)
        scores = {word: n / total * math.log(1 + mean / everywhere[word]) for word, n in one.items()}
        best = sorted(scores, key=lambda word, scores=scores: (-scores[word], word))[:WORDS]
        names[name] = ", ".join(best)
    return names
