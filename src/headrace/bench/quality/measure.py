"""Measures a model against a reference, or against what llama.cpp wrote of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from headrace.bench.quality.comparison import DistributionScores, compare
from headrace.bench.quality.llama_cpp_base import LlamaCppBase
from headrace.bench.quality.next_token_model import NextTokenModel
from headrace.bench.quality.own_text import TextOrder, own_text
from headrace.bench.quality.report import WORST, QualityReport, WorstContext, figures_of, greedy_length
from headrace.bench.quality.windows import Windows
from headrace.errors import UsageError
from headrace.loading.options import EngineOptions
from headrace.tokenization.tokenizer import Tokenizer

_CONTEXT_TOKENS = 24
Progress = Callable[[int, int], None]


class Side(Struct, frozen=True):
    """A model and how it is loaded."""

    model: str | None
    options: EngineOptions


def measure(
    side: Side,
    reference: Side,
    order: TextOrder,
    *,
    show: Callable[[str], None] = lambda text: None,
    progress: Progress = lambda done, total: None,
) -> QualityReport:
    """`side` against `reference`, over what `order` names. Raises the errors of loading; UsageError where the
    two cut texts into different tokens, or there is too little text."""
    read = own_text(reference.model, reference.options, order, show)
    longest = max(order.length, 0 if read.continued is None else read.continued.tokens.shape[1])
    show("loading the reference")
    base = NextTokenModel(reference.model, reference.options, longest=longest)
    show("loading the model")
    model = NextTokenModel(side.model, side.options, longest=longest)
    _check_pair(base, model, read.windows)
    every = [(window, read.windows.first) for window in read.windows.tokens]
    if read.continued is not None:
        every += [(window, read.continued.first) for window in read.continued.tokens]
    scores: list[DistributionScores] = []
    for done, (window, first) in enumerate(every):
        progress(done, len(every))
        scores.append(
            compare(base.log_probs(window, first), model.log_probs(window, first), window[first + 1 :])
        )
    progress(len(every), len(every))
    count = len(read.windows.tokens)
    return QualityReport(
        model=model.name,
        form=model.form,
        fingerprint=model.fingerprint,
        reference=base.name,
        reference_fingerprint=base.fingerprint,
        source=read.windows.source,
        greedy=greedy_length(scores[count:]) if scores[count:] else None,
        worst=worst_contexts(scores[:count], read.windows, model.tokenizer),
        bytes=model.plan.weights_bytes,
        reference_bytes=base.plan.weights_bytes,
        tokens_per_s=model.tokens_per_s(every[-1][0]),
        reference_tokens_per_s=base.tokens_per_s(every[-1][0]),
        **figures_of(scores[:count]),  # type: ignore[arg-type]
    )


def measure_against_file(
    side: Side,
    file: Path,
    *,
    windows: int,
    progress: Progress = lambda done, total: None,
) -> QualityReport:
    """`side` against a file of llama.cpp's log probabilities. CorruptFile, UsageError where the file is of
    another vocabulary."""
    base = LlamaCppBase(file, most=windows)
    model = NextTokenModel(side.model, side.options, longest=base.windows.tokens.shape[1])
    if model.vocabulary < base.vocabulary:
        raise UsageError(
            f"{file} is of a vocabulary of {base.vocabulary:,} tokens, {model.name} has"
            f" {model.vocabulary:,}: make the file with the same model",
            param="against",
        )
    opened = base.opened(model.tokenizer)
    scores: list[DistributionScores] = []
    for done, window in enumerate(opened.tokens):
        progress(done, len(opened.tokens))
        narrowed = (block[:, : base.vocabulary] for block in model.log_probs(window, opened.first))
        scores.append(compare(base.log_probs(done), narrowed, window[opened.first + 1 :]))
    progress(len(opened.tokens), len(opened.tokens))
    return QualityReport(
        model=model.name,
        form=model.form,
        fingerprint=model.fingerprint,
        reference=base.name,
        reference_fingerprint="",
        source=opened.source,
        greedy=None,
        worst=worst_contexts(scores, opened, model.tokenizer),
        bytes=model.plan.weights_bytes,
        reference_bytes=0,
        tokens_per_s=model.tokens_per_s(opened.tokens[-1]),
        reference_tokens_per_s=0.0,
        **figures_of(scores),  # type: ignore[arg-type]
    )


def worst_contexts(
    scores: Sequence[DistributionScores], windows: Windows, tokenizer: Tokenizer
) -> tuple[WorstContext, ...]:
    """The positions of the highest divergence, highest first."""
    table = np.stack([one.kl for one in scores])
    places = np.argsort(table, axis=None)[::-1][:WORST]
    found: list[WorstContext] = []
    for place in places.tolist():
        window, position = divmod(place, table.shape[1])
        at = windows.first + position + 1
        tokens = windows.tokens[window]
        before = tokenizer.decode(tokens[max(at - _CONTEXT_TOKENS, 0) : at].tolist(), skip_special=False)
        token = tokenizer.decode([int(tokens[at])], skip_special=False)
        found.append(WorstContext(float(table[window, position]), before, token))
    return tuple(found)


def _check_pair(base: NextTokenModel, model: NextTokenModel, windows: Windows) -> None:
    text = base.tokenizer.decode(windows.tokens[0].tolist())
    same = base.tokenizer.encode(text) == model.tokenizer.encode(text)
    if base.vocabulary != model.vocabulary or not same:
        raise UsageError(
            f"{model.name} and {base.name} do not have the same tokens (vocabularies of"
            f" {model.vocabulary:,} and {base.vocabulary:,}): only forms of one model can be compared",
            param="against",
        )
