"""The gate of every command that makes a model smaller: it is measured before it takes its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from headrace.bench.quality.card import write_card
from headrace.bench.quality.measure import Progress, Side, measure
from headrace.bench.quality.own_text import TextOrder
from headrace.bench.quality.report import QualityReport
from headrace.errors import QualityBelowBound, UsageError
from headrace.loading.model_record import ModelRecord, read_record, write_record
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare

WINDOWS, WINDOW_TOKENS, GREEDY_TOKENS = 8, 256, 32
SEED = 0
"""Calibration has another one: a model is not measured on the text that it was calibrated on."""
_MIN_WINDOW = 16


class QualityGate(Struct, frozen=True, kw_only=True):
    """What a model is measured against, and the bound that it must keep (None: none). The text is `text`'s,
    or what the reference writes."""

    reference: str
    options: EngineOptions
    max_kl: float | None = None
    text: str | None = None
    text_name: str = ""
    windows: int = WINDOWS

    def __post_init__(self) -> None:
        if self.max_kl is not None and not 0 <= self.max_kl < math.inf:
            raise UsageError(f"max_kl is {self.max_kl}, it must be a number of nats from 0", param="max_kl")


def gate(
    written: Path,
    name: str,
    made: Mapping[str, str],
    order: QualityGate,
    *,
    show: Callable[[str], None] = lambda text: None,
    progress: Progress = lambda done, total: None,
) -> QualityReport | None:
    """Measure the model in `written`, which will be called `name`, and put the result and how it was `made`
    into its record and card; None, and only the latter, for an encoder.

    QualityBelowBound where it is worse than allowed; UsageError for a bound on an encoder.
    """
    stored = replace(order.options, quantization="keep", kv_cache_dtype="auto", quality=None)
    context = _context(written, stored)
    if context is None:
        if order.max_kl is not None:
            raise UsageError(
                f"{name} is an encoder, which predicts no next token: leave --max-kl out", param="max_kl"
            )
        record = ModelRecord(made=dict(made))
        report = None
    else:
        text = _text(order, context)
        reference = Side(order.reference, replace(stored, kv_cache_dtype="f32"))
        found = measure(Side(str(written), stored), reference, text, show=show, progress=progress)
        report = replace(found, model=name)
        check(report, order.max_kl)
        record = ModelRecord(made=dict(made)).with_measured(report.measured)
    write_record(written, replace(record, kv=read_record(written).kv))
    write_card(written, name, record)
    return report


def gate_kv(
    written: Path,
    name: str,
    order: QualityGate,
    *,
    show: Callable[[str], None] = lambda text: None,
    progress: Progress = lambda done, total: None,
) -> QualityReport:
    """The same for keys and values as the record of `written` says (`mixed`), behind `gate`: another form of
    the model, in the same record and card."""
    mixed = replace(order.options, quantization="keep", kv_cache_dtype="mixed", quality=None)
    reference = Side(order.reference, replace(mixed, kv_cache_dtype="f32"))
    context = _context(written, replace(mixed, kv_cache_dtype="auto"))
    assert context is not None  # an encoder has no keys and values to calibrate
    text = _text(order, context)
    found = measure(Side(str(written), mixed), reference, text, show=show, progress=progress)
    report = replace(found, model=name)
    check(report, order.max_kl)
    record = read_record(written)
    record = replace(record, quality=(*record.quality, report.measured))
    write_record(written, record)
    write_card(written, name, record)
    return report


def check(report: QualityReport, max_kl: float | None) -> None:
    """QualityBelowBound where the mean divergence is above the bound."""
    if max_kl is not None and not report.kl.mean <= max_kl:
        raise QualityBelowBound(
            f"the mean KL divergence of {report.model} is {report.kl.mean:.5f} nats, at most {max_kl} are"
            " allowed"
        )


def _text(order: QualityGate, context: int) -> TextOrder:
    return TextOrder(
        windows=order.windows,
        length=max(min(WINDOW_TOKENS, context - GREEDY_TOKENS), _MIN_WINDOW),
        continued=GREEDY_TOKENS,
        text=order.text,
        source=order.text_name,
        seed=SEED,
    )


def _context(model: Path, options: EngineOptions) -> int | None:
    """The model's context; None for an encoder."""
    with prepare(str(model), replace(options, speculative="off", max_num_seqs=1)) as prepared:
        return None if prepared.model.pooling is not None else prepared.model.config.context
