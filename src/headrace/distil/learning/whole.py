"""A small model that learns the answers of a task with all of its weights (sequence-level distillation, Kim
and Rush 2016), and of a teacher on this machine what it finds likely at each token."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from headrace.adapt.fine_tuning.order import AdapterNote, AdapterOrder
from headrace.bench.quality.next_token_model import NextTokenModel
from headrace.distil.learning.adapters import EpochBatches, plan_of, wait_for_clients
from headrace.distil.learning.student import load_student, write_student
from headrace.distil.learning.training import Batch, Trainer
from headrace.distil.samples import Sample
from headrace.distil.teacher_data import TOP, TeacherData, TopK, certain, top_of, toward
from headrace.errors import HeadraceError
from headrace.loading.options import EngineOptions
from headrace.loading.text_assets import load_text_assets

MATRIX_RATE, OTHER_RATE = 2e-3, 5e-4
"""Of Muon, and of AdamW for embeddings and norms: a fifth of what heals a pruned model."""
SAID = 0.5
"""Share of what is learned that is the answer itself, and not what its teacher finds likely."""
Tops = Callable[[Sample], TopK]


def train_whole(
    order: AdapterOrder, samples: Sequence[Sample], said: Sequence[Sample], say: Callable[[AdapterNote], None]
) -> AdapterNote:
    """Train on `samples`, of which the teacher has `said` some, and write a folder of a model to `order.out`.
    InvalidRequest, UnsupportedModel, NumericalError."""
    base, work, plan = Path(order.base), Path(order.work), order.plan
    batches = EpochBatches(samples, plan.batch_size, plan.epochs, plan.seed)
    teacher = _teacher(order, base, samples)
    tops = None if teacher is None else _tops(order, teacher, said)
    learning = plan_of(order, samples, batches.steps, MATRIX_RATE)
    if teacher is not None:  # a checkpoint is of one teacher
        learning = replace(learning, key=f"{learning.key} {teacher.fingerprint}")
    model = load_student(base)
    trainer = Trainer(model, learning, work)
    say(AdapterNote(kind="began", steps=batches.steps))

    def batch(step: int) -> Batch:
        some = batches.of(step)
        return some, None if tops is None else [tops(one) for one in some]

    def progress(step: int, steps: int, loss: float) -> None:
        say(AdapterNote(kind="step", step=step, steps=steps, loss=loss))
        wait_for_clients(order.pause)

    trainer.train(batch, progress)
    write_student(trainer.model.cpu(), base, Path(order.out))
    learned = sum(len(one.tokens) for one in samples) * plan.epochs
    return AdapterNote(kind="made", step=trainer.step, steps=trainer.steps, tokens=learned)


def _teacher(order: AdapterOrder, base: Path, samples: Sequence[Sample]) -> NextTokenModel | None:
    """None where nothing is known but the answers: also where it has other tokens, or no room."""
    if order.teacher is None:
        return None
    longest = max(len(one.tokens) for one in samples)
    options = EngineOptions(threads=order.threads, quantization="keep", cache_dir=None)
    try:
        teacher = NextTokenModel(order.teacher, options, longest=longest)
    except HeadraceError:
        return None
    own, _ = load_text_assets(base, None)
    same = own.eos_ids == teacher.tokenizer.eos_ids and own.to_json() == teacher.tokenizer.to_json()
    return teacher if same else None


def _tops(order: AdapterOrder, teacher: NextTokenModel, said: Sequence[Sample]) -> Tops:
    """What is likely at each learned token of an answer."""

    def likely(sample: Sample) -> TopK:
        wait_for_clients(order.pause)
        logs = np.concatenate(list(teacher.log_probs(sample.tokens, sample.first - 1)))
        return top_of(logs, TOP)

    data = TeacherData(Path(order.work) / "teacher", teacher.fingerprint, likely)
    theirs = {one.digest for one in said}

    def tops(sample: Sample) -> TopK:
        wanted = sample.tokens[sample.first :]
        if sample.digest in theirs:
            return toward(data.of([sample])[0], wanted, SAID)
        return certain(wanted, teacher.vocabulary)

    return tops
