"""A model's next-token distributions over given tokens, straight from its executor."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace import _native
from headrace.errors import UsageError
from headrace.executors.kv_layers import KvLayers
from headrace.loading.engine_parts import Progress, load_weights, make_executor
from headrace.loading.loader import usable_cores
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare
from headrace.loading.quality_check import form_of
from headrace.ops.value import Ints
from headrace.program.step import single_step

ROWS = 64
"""Tokens of a step, each with its row of logits."""
TIMED_STEPS = 32
Logs = NDArray[np.float64]
_FIRST = np.zeros(1, np.int32)


class NextTokenModel:
    """Reads windows of up to `longest` tokens. Holds the weights and one sequence's keys and values, as `kv`
    says or the model's own record."""

    def __init__(
        self,
        model: str | None,
        options: EngineOptions,
        *,
        longest: int,
        progress: Progress | None = None,
        kv: KvLayers | None = None,
    ) -> None:
        wanted = replace(
            options,
            speculative="off",
            speculative_model=None,
            speculative_layers=None,
            max_num_seqs=ROWS,
            max_batch_tokens=ROWS,
            max_model_len=longest,
        )
        with prepare(model, wanted, kv=kv) as prepared:
            if prepared.model.pooling is not None:
                raise UsageError(
                    f"{prepared.name} is an encoder, which predicts no next token: name a model that"
                    " generates",
                    param="model",
                )
            self.name, self.plan = prepared.name, prepared.plan
            self.form, self.fingerprint = form_of(prepared, wanted), prepared.checkpoint.fingerprint
            self.tokenizer = prepared.tokenizer
            self.vocabulary = prepared.model.config.vocabulary
            pool = _native.Pool(options.threads or usable_cores())
            weights = load_weights(prepared, wanted, pool, progress)
            self._executor = make_executor(prepared, wanted, pool, weights)

    def log_probs(self, window: Ints, first: int) -> Iterator[Logs]:
        """Natural-log probabilities [n, V] of what follows each position from `first` to the last but one,
        in blocks of up to ROWS positions. `window` is [L]."""
        last = len(window) - 1  # what follows the last token is unknown
        for start in range(0, last, ROWS):
            end = min(start + ROWS, last)
            rows = np.arange(end - start, dtype=np.int32)
            step = single_step(window, start, end, rows, page_tokens=self.plan.page_tokens)
            logits = self._executor.run(step)
            if end > first:
                yield log_softmax(logits[max(first - start, 0) :])

    def tokens_per_s(self, window: Ints) -> float:
        """The speed of decoding one sequence, from the median step over the last tokens of `window`."""
        times: list[float] = []
        for position in range(max(len(window) - TIMED_STEPS, 0), len(window)):
            step = single_step(window, position, position + 1, _FIRST, page_tokens=self.plan.page_tokens)
            begun = time.perf_counter()
            self._executor.run(step)
            times.append(time.perf_counter() - begun)
        return 1 / float(np.median(times))


def log_softmax(logits: NDArray[np.float32]) -> Logs:
    """Of rows [n, V], in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
