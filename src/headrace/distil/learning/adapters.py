"""A low-rank adapter (LoRA, Hu et al. 2021) that learns samples, as a folder of PEFT."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from peft import LoraConfig, get_peft_model

from headrace.adapt.fine_tuning.order import METRICS_FILE, AdapterNote, AdapterOrder
from headrace.distil.learning.student import load_student
from headrace.distil.learning.training import Trainer, TrainingPlan
from headrace.distil.samples import Sample
from headrace.errors import InvalidRequest

BATCH_TOKENS = 2048
MAX_BATCH_TOKENS = 1 << 15
PAUSED_S = 1.0


def train_adapter(
    order: AdapterOrder, samples: Sequence[Sample], held: Sequence[Sample], say: Callable[[AdapterNote], None]
) -> AdapterNote:
    """Train on `samples`, and write a folder of PEFT to `order.out`; the loss of `held` is measured.
    InvalidRequest, UnsupportedModel, NumericalError."""
    base, plan = Path(order.base), order.plan
    batches = EpochBatches(samples, plan.batch_size, plan.epochs, plan.seed)
    torch.manual_seed(plan.seed)
    model: Any = get_peft_model(
        load_student(base),  # type: ignore[arg-type]
        LoraConfig(
            r=plan.rank,
            lora_alpha=2 * plan.rank,
            lora_dropout=0.0,
            target_modules="all-linear",
            bias="none",
            task_type="CAUSAL_LM",
        ),
    )
    work = Path(order.work)
    trainer = Trainer(model.eval(), plan_of(order, samples, batches.steps), work)
    say(AdapterNote(kind="began", steps=batches.steps))

    def progress(step: int, steps: int, loss: float) -> None:
        say(AdapterNote(kind="step", step=step, steps=steps, loss=loss))
        wait_for_clients(order.pause)

    trainer.train(lambda step: (batches.of(step), None), progress)
    last = float(trainer.losses_of([((one,), None) for one in held]).mean()) if held else None
    (work / METRICS_FILE).write_text(loss_table(trainer.losses, last))
    model.save_pretrained(order.out)
    learned = sum(len(one.tokens) for one in samples) * plan.epochs
    return AdapterNote(kind="made", step=trainer.step, steps=trainer.steps, tokens=learned)


def wait_for_clients(file: str | None) -> None:
    """While clients wait, as the file that they touch says."""
    while file is not None:
        try:
            age_s = time.time() - Path(file).stat().st_mtime
        except OSError:
            return
        if not 0 <= age_s < PAUSED_S:
            return
        time.sleep(0.1)


class EpochBatches:
    """The samples of each step: each epoch has all of them, in an order that the seed decides."""

    def __init__(self, samples: Sequence[Sample], size: int | None, epochs: int, seed: int) -> None:
        lengths = [len(one.tokens) for one in samples]
        self._size = size or max(BATCH_TOKENS * len(samples) // sum(lengths), 1)
        if size is not None and size * max(lengths) > MAX_BATCH_TOKENS:
            raise InvalidRequest(
                f"batch_size is {size} and the longest conversation has {max(lengths):,} tokens: a batch may"
                f" have {MAX_BATCH_TOKENS:,}",
                param="batch_size",
            )
        self._samples, self._seed = samples, seed
        self._in_epoch = -(-len(samples) // self._size)
        self.steps = self._in_epoch * epochs

    def of(self, step: int) -> list[Sample]:
        """The samples of a step."""
        epoch, place = divmod(step, self._in_epoch)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._samples))
        chosen = order[place * self._size : (place + 1) * self._size]
        return [self._samples[int(index)] for index in chosen]


def plan_of(
    order: AdapterOrder, samples: Sequence[Sample], steps: int, matrix_rate: float | None = None
) -> TrainingPlan:
    """By which a run is known again; `matrix_rate` is Muon's, None: AdamW alone."""
    digest = hashlib.sha256(msgspec.json.encode(order.plan))
    for sample in samples:
        digest.update(sample.digest)
    return TrainingPlan(
        key=digest.hexdigest(),
        steps=steps,
        hours=order.hours,
        matrix_rate=matrix_rate,
        other_rate=order.plan.rate,
        threads=order.threads,
        checkpoint_every_s=10.0,
    )


def loss_table(losses: Sequence[float], validation: float | None) -> str:
    """The losses of all steps, and of what was held out."""
    rows = ["step,train_loss,valid_loss"]
    rows += [f"{step},{loss:.5f}," for step, loss in enumerate(losses, 1)]
    if validation is not None:
        rows[-1] += f"{validation:.5f}"
    return "\n".join([*rows, ""])
