"""A teacher's labels become a classifier on an encoder's vectors, if they can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb

import numpy as np
from msgspec import Struct

from headrace.distil.paired_test import ALPHA
from headrace.distil.probe import lower_bound, normal
from headrace.errors import HeadraceError, UsageError
from headrace.ops.value import Array, Ints
from headrace.tasks.few_shot import LogisticRegression, fit

FOLDS = 5
MAX_NOISE = 0.15
"""Share of labels that a head which did not see them finds wrong with confidence."""
LEAST_EACH = FOLDS
LEAST_RIGHT = 0.75
MAX_UNREADABLE = 0.1


class LabelsRefused(HeadraceError):
    """Labels, or the head that learned them, are not good enough: nothing is written."""

    remedy = "Look at the labels, take another teacher, or make the labels easier to tell apart."
    exit_code = 1


class HeadReport(Struct, frozen=True, kw_only=True):
    """`noise` is the share of labels that heads trained on the other ones contradict with confidence,
    `agreement` of those that they agree with. Of `held_out` texts labeled by people so many the head and the
    teacher have right; 0 without such. `unreadable` answers of the teacher named no label."""

    texts: int
    labels: dict[str, int]
    noise: float
    agreement: float
    held_out: int = 0
    held_out_right: int = 0
    teacher_right: int = 0
    unreadable: int = 0


def read_label(answer: str, labels: Sequence[str]) -> str | None:
    """The one label that an answer names."""
    said = normal(answer)
    exact = [label for label in labels if normal(label) == said]
    named = exact or [label for label in labels if f" {normal(label)} " in f" {said} "]
    return named[0] if len(named) == 1 else None


def head_of(
    vectors: Array,
    labels: Sequence[str | None],
    *,
    known: tuple[Array, Sequence[str]] | None = None,
    teacher_on_known: Sequence[str | None] = (),
    max_noise: float = MAX_NOISE,
) -> tuple[LogisticRegression, HeadReport]:
    """A head from vectors of length 1 [texts, size] with the teacher's labels, None where it named none.
    `known` are vectors with labels by people, `teacher_on_known` what the teacher says of those.

    LabelsRefused where labels contradict each other, or the head loses against what is known.
    """
    places = [place for place, label in enumerate(labels) if label is not None]
    unreadable = len(labels) - len(places)
    if unreadable > MAX_UNREADABLE * len(labels):
        raise LabelsRefused(
            f"the teacher named none of the labels for {unreadable} of {len(labels)} texts: it does not do"
            " the task"
        )
    own = [label for label in labels if label is not None]
    x = vectors[places]
    counts = {label: own.count(label) for label in sorted(set(own))}
    few = [label for label, count in counts.items() if count < LEAST_EACH]
    if len(counts) < 2 or few:
        raise UsageError(
            f"each of at least two labels needs {LEAST_EACH} texts: there are {counts}", param="prompts"
        )
    noise, agreement = _noise(x, own)
    if noise > max_noise:
        raise LabelsRefused(
            f"{noise:.0%} of the labels are contradicted by heads that learned the other ones, at most"
            f" {max_noise:.0%} may be: they look random or wrong"
        )
    head = fit(x, own)
    report = HeadReport(
        texts=len(own), labels=counts, noise=noise, agreement=agreement, unreadable=unreadable
    )
    if known is None:
        return head, report
    return head, _against(head, report, known, teacher_on_known)


def _against(
    head: LogisticRegression,
    report: HeadReport,
    known: tuple[Array, Sequence[str]],
    teacher: Sequence[str | None],
) -> HeadReport:
    said = [one.label for one in head.classify(known[0])]
    right = np.array([one == other for one, other in zip(said, known[1], strict=True)])
    of_teacher = np.array([one == other for one, other in zip(teacher, known[1], strict=True)])
    if lower_bound(int(of_teacher.sum()), len(right)) < LEAST_RIGHT:
        raise LabelsRefused(
            f"the teacher has {int(of_teacher.sum())} of {len(right)} labels as people have them, which is at"
            f" least {lower_bound(int(of_teacher.sum()), len(right)):.0%} with 95 % confidence,"
            f" {LEAST_RIGHT:.0%} are needed"
        )
    lost, won = int((of_teacher & ~right).sum()), int((right & ~of_teacher).sum())
    chance = _binomial(lost, lost + won)
    if chance < ALPHA:
        raise LabelsRefused(
            f"on {len(right)} texts labeled by people the head is worse than the teacher: {int(right.sum())}"
            f" right instead of {int(of_teacher.sum())} (McNemar, p = {chance:.4f})"
        )
    return HeadReport(
        texts=report.texts,
        labels=report.labels,
        noise=report.noise,
        agreement=report.agreement,
        unreadable=report.unreadable,
        held_out=len(right),
        held_out_right=int(right.sum()),
        teacher_right=int(of_teacher.sum()),
    )


def _noise(vectors: Array, labels: Sequence[str]) -> tuple[float, float]:
    """Confident learning (Northcutt et al. 2021): a label is contradicted where a head that did not see it
    finds another one at least as likely as that one is on average where it was given."""
    names = sorted(set(labels))
    given = np.array([names.index(label) for label in labels])
    chances = np.zeros((len(labels), len(names)))
    folds = _folds(given)
    for fold in range(FOLDS):
        seen: list[int] = np.flatnonzero(folds != fold).tolist()
        head = fit(vectors[seen], [labels[place] for place in seen])
        columns = [names.index(label) for label in head.labels]
        for place, one in zip(
            np.flatnonzero(folds == fold), head.classify(vectors[folds == fold]), strict=True
        ):
            chances[place, columns] = one.scores
    usual = np.array([chances[given == label, label].mean() for label in range(len(names))])
    found = chances.argmax(axis=1)
    sure = chances[np.arange(len(given)), found] >= usual[found]
    return float(((found != given) & sure).mean()), float((found == given).mean())


def _folds(given: Ints | np.ndarray) -> np.ndarray:
    """Each label evenly over all folds."""
    folds = np.zeros(len(given), np.int64)
    for label in np.unique(given):
        places = np.flatnonzero(given == label)
        folds[places] = np.random.default_rng(0).permutation(len(places)) % FOLDS
    return folds


def _binomial(lost: int, discordant: int) -> float:
    """How often a fair coin falls so at least `lost` times."""
    if not discordant:
        return 1.0
    return sum(comb(discordant, k) for k in range(lost, discordant + 1)) / 2**discordant


Label = Callable[[Sequence[str]], list[str | None]]
