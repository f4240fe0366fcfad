"""Figures of a comparison, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.bench.quality.comparison import DistributionScores, joined
from headrace.loading.model_record import Form, KlFigures, MeasuredForm

RESAMPLES = 1000
CONFIDENCE = 0.95
WORST = 10
_PLOTTED = 1e-9
"""Nats; below it a divergence is rounding, and has no place on a logarithmic scale."""

Interval = tuple[float, float]


class Divergence(Struct, frozen=True):
    """KL(reference || model) of the next token, in nats; `interval` is that of the mean."""

    mean: float
    median: float
    p999: float
    interval: Interval


class GreedyLength(Struct, frozen=True):
    """How far greedy answers stay the same: tokens until the first that differs, of at most `tokens`, by the
    median prompt; the share of prompts whose answers are the same to the end."""

    median: float
    same: float
    tokens: int


class WorstContext(Struct, frozen=True):
    """A position of a high divergence: the text before it, and the token that follows."""

    kl: float
    before: str
    token: str


class QualityReport(Struct, frozen=True, kw_only=True):
    """A model against its reference, over `tokens` scored positions of `windows` windows. Intervals have 95 %
    confidence and come from resampled windows (bootstrap); with fewer than 8 windows they are rough.
    `distribution` has pairs of a divergence and the share of positions with at most that; `bytes` are those
    of the weights, `tokens_per_s` is one stream's speed of decoding; 0 where they are not known. The first
    five fields are what other programs rely on."""

    kl: Divergence
    top1: float
    perplexity: float
    reference_perplexity: float
    tokens: int
    model: str
    form: Form
    fingerprint: str
    reference: str
    reference_fingerprint: str
    source: str
    windows: int
    top1_interval: Interval
    perplexity_interval: Interval
    perplexity_ratio: float
    perplexity_ratio_interval: Interval
    greedy: GreedyLength | None
    distribution: tuple[tuple[float, float], ...]
    worst: tuple[WorstContext, ...]
    bytes: int
    reference_bytes: int
    tokens_per_s: float
    reference_tokens_per_s: float

    @property
    def measured(self) -> MeasuredForm:
        """What is kept of it."""
        return MeasuredForm(
            kl=KlFigures(self.kl.mean, self.kl.median, self.kl.p999),
            top1=self.top1,
            perplexity=self.perplexity,
            reference_perplexity=self.reference_perplexity,
            tokens=self.tokens,
            form=self.form,
            reference=self.reference,
            reference_fingerprint=self.reference_fingerprint,
            source=self.source,
            bytes=self.bytes,
            tokens_per_s=round(self.tokens_per_s, 2),
        )


def intervals(
    windows: Sequence[DistributionScores], figures: Sequence[Callable[[NDArray[np.float64]], float]]
) -> list[Interval]:
    """Percentile intervals of figures of the windows' means [4]: divergence, losses, agreement, in the order
    of DistributionScores. Windows are resampled, since tokens of one window depend on each other."""
    means = np.array(
        [[one.kl.mean(), one.loss.mean(), one.reference_loss.mean(), one.agrees.mean()] for one in windows]
    )
    chosen = np.random.default_rng(0).integers(0, len(means), (RESAMPLES, len(means)))
    resampled = means[chosen].mean(axis=1)
    tail = (1 - CONFIDENCE) / 2
    return [
        (float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail)))
        for values in (np.array([figure(row) for row in resampled]) for figure in figures)
    ]


def figures_of(windows: Sequence[DistributionScores]) -> dict[str, object]:
    """The fields of a QualityReport that follow from the scores."""
    every = joined(list(windows))
    loss, reference = float(every.loss.mean()), float(every.reference_loss.mean())
    kl, ppl, ratio, top1 = intervals(
        windows,
        (
            lambda row: float(row[0]),
            lambda row: float(np.exp(row[1])),
            lambda row: float(np.exp(row[1] - row[2])),
            lambda row: float(row[3]),
        ),
    )
    return {
        "windows": len(windows),
        "tokens": len(every.kl),
        "kl": Divergence(
            float(every.kl.mean()), float(np.median(every.kl)), float(np.quantile(every.kl, 0.999)), kl
        ),
        "distribution": _distribution(every.kl),
        "top1": float(every.agrees.mean()),
        "top1_interval": top1,
        "perplexity": float(np.exp(loss)),
        "perplexity_interval": ppl,
        "reference_perplexity": float(np.exp(reference)),
        "perplexity_ratio": float(np.exp(loss - reference)),
        "perplexity_ratio_interval": ratio,
    }


def _distribution(kl: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    shares: list[float] = [index / 100 for index in range(101)]
    values: list[float] = np.maximum(np.quantile(kl, shares), _PLOTTED).tolist()
    return tuple(zip(values, shares, strict=True))


def greedy_length(continued: Sequence[DistributionScores]) -> GreedyLength:
    """Of the reference's own greedy continuations: the model's is the same up to the first position at which
    its most likely token is another one."""
    lengths = [len(one.agrees) if one.agrees.all() else int(one.agrees.argmin()) for one in continued]
    tokens = len(continued[0].agrees)
    same = sum(length == tokens for length in lengths) / len(lengths)
    return GreedyLength(float(np.median(lengths)), same, tokens)
