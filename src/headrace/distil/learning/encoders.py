"""A student that makes vectors: it learns which texts the teacher finds alike."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor
from torch.nn import functional as F

from headrace.distil.learning.loss_plot import plot_losses
from headrace.distil.learning.optimizers import Optimizers
from headrace.distil.learning.student import load_student, write_student
from headrace.distil.learning.training import autocast
from headrace.distil.paired_test import check_better
from headrace.distil.samples import MAX_HELD_OUT, MIN_HELD_OUT
from headrace.errors import UnsupportedModel, UsageError
from headrace.llm import LLM
from headrace.loading.options import EngineOptions
from headrace.loading.text_assets import load_text_assets
from headrace.ops.value import Array
from headrace.weights.pooling import read_pooling

BATCH = 32
MARGIN = 0.1
"""Of cosines: a text must be so much nearer to its like than to another, where the teacher finds it so."""
LEAST_TEXTS = 4 * BATCH


class EncoderOrder(Struct, frozen=True, kw_only=True):
    """The `texts` that the teacher embeds, and how to learn."""

    teacher: str
    student: Path
    options: EngineOptions
    texts: tuple[str, ...]
    threads: int
    steps: int = 300
    rate: float = 0.002
    table_rate: float = 0.0002
    seed: int = 1
    max_tokens: int = 128


class EncoderReport(Struct, frozen=True, kw_only=True):
    """Correlation of the student's cosines of held-out texts with the teacher's, before and after; `p_worse`
    of the paired test of the errors."""

    steps: int
    texts: int
    held_out: int
    correlation_before: float
    correlation_after: float
    p_worse: float
    loss_first: float
    loss_last: float


def distil_encoder(
    order: EncoderOrder,
    out: Path,
    show: Callable[[str], None],
    progress: Callable[[int, int, float], None],
) -> EncoderReport:
    """Train, and write the student to the folder `out`. StudentWorse, UsageError, UnsupportedModel."""
    texts = sorted(set(order.texts), key=lambda text: hashlib.sha256(text.encode()).digest())
    if len(texts) < LEAST_TEXTS:
        raise UsageError(f"there are {len(texts)} different texts, at least {LEAST_TEXTS} are needed")
    pooling = read_pooling(order.student)
    if pooling is not None and pooling.kind not in ("mean", "cls", "last"):
        raise UnsupportedModel(
            f"{order.student.name} has the pooling {pooling.kind!r}: mean, cls and last learn"
        )
    show("the teacher embeds")
    with closing(LLM(order.teacher, cache_dir=None, threads=order.threads)) as llm:
        wanted = _unit(np.asarray(llm.embed(list(texts)), np.float32))
    held = min(max(len(texts) // 20, MIN_HELD_OUT), MAX_HELD_OUT)
    torch.set_num_threads(order.threads)
    show("loading the student")
    student = _Student(order, "mean" if pooling is None else pooling.kind)
    before = student.vectors(texts[:held])
    losses: list[float] = []
    for step in range(order.steps):
        rows = np.random.default_rng([order.seed, step]).integers(held, len(texts), BATCH)
        losses.append(student.learn([texts[row] for row in rows], wanted[rows], _share(step, order.steps)))
        progress(step + 1, order.steps, losses[-1])
    after = student.vectors(texts[:held])
    worse, _ = check_better(_errors(before, wanted[:held]), _errors(after, wanted[:held]))
    write_student(student.model, order.student, out)
    plot_losses(losses, out / "distil_loss.png")
    return EncoderReport(
        steps=order.steps,
        texts=len(texts) - held,
        held_out=held,
        correlation_before=_correlation(before, wanted[:held]),
        correlation_after=_correlation(after, wanted[:held]),
        p_worse=worse,
        loss_first=float(np.mean(losses[:20])),
        loss_last=float(np.mean(losses[-20:])),
    )


class _Student:
    def __init__(self, order: EncoderOrder, pooling: str) -> None:
        self.model: Any = load_student(order.student, encoder=True)
        self._tokenizer, _ = load_text_assets(order.student, None)
        self._pooling, self._most = pooling, order.max_tokens
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self._named = named
        self._optimizers = Optimizers(named, order.rate, order.table_rate)

    def learn(self, texts: Sequence[str], wanted: Array, share: float) -> float:
        """Cosines of all pairs as the teacher's (and of the vectors themselves, where they are as long), and
        the order of pairs that the teacher tells apart by more than the margin."""
        self.model.zero_grad()
        said, teacher = self._states(texts), torch.from_numpy(wanted)
        ours, theirs = said @ said.T, teacher @ teacher.T
        loss = F.mse_loss(ours, theirs) * 10
        if said.shape == teacher.shape:
            loss = loss + (1 - (said * teacher).sum(-1)).mean()
        far = (theirs[:, :, None] - theirs[:, None, :]) > 2 * MARGIN
        loss = loss + (F.relu(MARGIN - (ours[:, :, None] - ours[:, None, :])) * far).sum() / far.sum().clamp(
            1
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._named.values(), 1.0)
        self._optimizers.step(share)
        return float(loss.detach())

    def vectors(self, texts: Sequence[str]) -> Array:
        with torch.no_grad():
            parts = [self._states(texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)]
        return torch.cat(parts).numpy()

    def _states(self, texts: Sequence[str]) -> Tensor:
        rows = [self._tokenizer.encode(text)[: self._most] for text in texts]
        longest = max(map(len, rows))
        ids, mask = np.zeros((len(rows), longest), np.int64), np.zeros((len(rows), longest), np.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)], mask[place, : len(row)] = row, 1
        seen = torch.from_numpy(mask)
        with autocast(torch.device("cpu")):
            states = self.model(input_ids=torch.from_numpy(ids), attention_mask=seen).last_hidden_state
        states = states.float()
        if self._pooling == "cls":
            pooled = states[:, 0]
        elif self._pooling == "last":
            pooled = states[torch.arange(len(rows)), seen.sum(1) - 1]
        else:
            pooled = (states * seen[:, :, None]).sum(1) / seen.sum(1, keepdim=True)
        return F.normalize(pooled, dim=-1)


def _share(step: int, steps: int) -> float:
    warm = max(steps // 20, 1)
    return (step + 1) / warm if step < warm else max(1 - (step - warm) / max(steps - warm, 1), 0.0)


def _unit(vectors: Array) -> Array:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _errors(said: Array, wanted: Array) -> np.ndarray:
    """Of each text the mean squared error of its cosines with the others."""
    return np.square(said @ said.T - wanted @ wanted.T).mean(axis=1).astype(np.float64)


def _correlation(said: Array, wanted: Array) -> float:
    pairs = np.triu_indices(len(said), 1)
    return float(np.corrcoef((said @ said.T)[pairs], (wanted @ wanted.T)[pairs])[0, 1])
