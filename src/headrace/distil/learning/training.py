"""The steps of a student: batches in an order that the seed decides, checkpoints, resuming."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headrace.distil.learning.losses import likelihood, top_divergence
from headrace.distil.learning.optimizers import Optimizers
from headrace.distil.samples import Sample
from headrace.distil.teacher_data import TopK
from headrace.errors import CorruptFile, NumericalError, StoreError, UsageError

CHECKPOINT = "checkpoint.safetensors"
CHECKPOINT_EVERY_S = 45.0
WARM_UP = 0.05
"""Of the steps; a cosine to nothing follows."""
LEAST_SHARE = 0.0
MEASURED_STEPS = 6
_MAX_STEPS = 10_000_000
Batch = tuple[Sequence[Sample], Sequence[TopK] | None]
"""Samples, and what the teacher finds likely at their learned tokens; None: they are learned as they are."""


class TrainingPlan(Struct, frozen=True, kw_only=True):
    """How to train. `steps` None: as many as `hours` have room for, which the first steps show. `key` is a
    digest of all that decides the weights: a checkpoint of another key is refused. `matrix_rate` is Muon's;
    None: AdamW alone."""

    key: str
    steps: int | None
    hours: float
    matrix_rate: float | None
    other_rate: float
    threads: int
    checkpoint_every_s: float = CHECKPOINT_EVERY_S


class Trainer:
    """Trains a model of transformers. `losses` has the mean loss of each step so far."""

    def __init__(self, model: nn.Module, plan: TrainingPlan, work: Path) -> None:
        torch.set_num_threads(plan.threads)
        self.model, self.plan, self.work = model, plan, work
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model.to(self.device)
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._optimizers = Optimizers(named, plan.matrix_rate, plan.other_rate)
        self._named = named
        self.step, self.steps = 0, plan.steps or 0
        self.losses: list[float] = []
        self._began, self._saved = time.monotonic(), time.monotonic()
        self._first = 0
        work.mkdir(parents=True, exist_ok=True)
        self._load()

    def train(self, batch_of: Callable[[int], Batch], progress: Callable[[int, int, float], None]) -> None:
        """To the last step, with the batch of each. NumericalError where the loss is no number."""
        while not self.steps or self.step < self.steps:
            loss = self._step(batch_of(self.step))
            self.losses.append(loss)
            self.step += 1
            if not self.steps and self.step - self._first >= MEASURED_STEPS:
                self._fix_steps()
            progress(self.step, self.steps, loss)
            if time.monotonic() - self._saved > self.plan.checkpoint_every_s:
                self.save()
        self.save()

    def losses_of(self, batches: Sequence[Batch]) -> np.ndarray:
        """The mean loss of each sample."""
        found: list[float] = []
        for batch in batches:
            with torch.no_grad():
                losses, rows = self._losses(batch)
            for index in range(len(batch[0])):
                found.append(float(losses[rows == index].mean()))
        return np.array(found)

    def save(self) -> None:
        """Weights, state of the optimizers and step, whole or not at all."""
        tensors = self._optimizers.tensors()
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        numbers = {"step": str(self.step), "steps": str(self.steps), "key": self.plan.key}
        part = self.work / f"checkpoint.{os.getpid()}.part"
        try:
            save_file(tensors, part, metadata=numbers)
            part.replace(self.work / CHECKPOINT)
        except OSError as error:
            raise StoreError(f"{self.work}: the checkpoint cannot be written: {error.strerror}") from None
        except Exception as error:  # safetensors has an error of its own for a full disk
            raise StoreError(f"{self.work}: the checkpoint cannot be written: {error}") from None
        finally:
            part.unlink(missing_ok=True)
        self._saved = time.monotonic()

    def _load(self) -> None:
        file = self.work / CHECKPOINT
        if not file.is_file():
            return
        try:
            numbers = _metadata(file)
            tensors = load_file(file, device=str(self.device))
        except Exception as error:
            raise CorruptFile(f"{file} cannot be read: {error}: delete it to begin again") from None
        if numbers.get("key") != self.plan.key:
            raise UsageError(
                f"{self.work} holds another run: give the same options to go on with it, another --work, or"
                " delete it"
            )
        self.step, self.steps = int(numbers["step"]), int(numbers["steps"]) or self.steps
        self._first = self.step
        self._optimizers.load(tensors, self.step, self.device)
        self.losses = tensors["losses"].tolist()

    def _fix_steps(self) -> None:
        took = (time.monotonic() - self._began) / (self.step - self._first)
        self.steps = min(max(int(self.plan.hours * 3600 / took), self.step + 1), _MAX_STEPS)
        self.save()

    def _share(self) -> float:
        """Of the full rates at this step; while the number of steps is not known, the warm-up's."""
        warm = max(int(self.steps * WARM_UP), MEASURED_STEPS)
        if self.step < warm:
            return (self.step + 1) / max(warm, 20) if not self.steps else (self.step + 1) / warm
        done = (self.step - warm) / max(self.steps - warm, 1)
        return LEAST_SHARE + (1 - LEAST_SHARE) * (1 + math.cos(math.pi * done)) / 2

    def _step(self, batch: Batch) -> float:
        self.model.zero_grad()
        losses, _ = self._losses(batch)
        loss = losses.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self._named.values(), 1.0)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise NumericalError(
                f"the loss of step {self.step} is no number: give a lower --rate, or look at the data"
            )
        self._optimizers.step(self._share())
        return value

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of each learned token, and the place of its sample in the batch."""
        samples, tops = batch
        longest = max(len(one.tokens) for one in samples)
        tokens = np.zeros((len(samples), longest), np.int64)
        for row, one in enumerate(samples):
            tokens[row, : len(one.tokens)] = one.tokens
        rows = np.concatenate([np.full(one.learned, row) for row, one in enumerate(samples)])
        before = np.concatenate([np.arange(one.first, len(one.tokens)) - 1 for one in samples])
        given = torch.from_numpy(tokens).to(self.device)
        with autocast(self.device):
            logits: Tensor = self.model(input_ids=given, use_cache=False).logits
        said = logits[torch.from_numpy(rows), torch.from_numpy(before)]
        if tops is None:
            losses = likelihood(said, given[torch.from_numpy(rows), torch.from_numpy(before + 1)])
        else:
            ids, logs, tail = (
                torch.from_numpy(np.concatenate([getattr(one, name) for one in tops])).to(self.device)
                for name in ("ids", "logs", "tail")
            )
            losses = top_divergence(said, ids.long(), logs, tail)
        return losses, torch.from_numpy(rows)


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 products where the processor has them."""
    return torch.autocast(device.type, torch.bfloat16) if _has_bf16(device) else nullcontext()


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return any(flag in flags for flag in ("amx_bf16", "avx512_bf16"))


def _metadata(file: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:  # pyright: ignore[reportUnknownVariableType]
        return dict(opened.metadata() or {})  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
