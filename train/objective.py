"""Training objectives: cross entropy on given answers, or distillation from a teacher."""

import shutil
from collections.abc import Callable

import torch
from decoder import Decoder
from loop import sees
from mixture import Batch
from torch import Tensor

from headrace.distil.learning.losses import divergence
from headrace.distil.learning.losses import likelihood as token_nats

Objective = Callable[[Batch], Tensor]


def likelihood(decoder: Decoder) -> Objective:
    """Weighted mean loss in nats per trained token. Logits are computed only for trained tokens."""
    states, nats = _states(decoder), _compiled(token_nats, dynamic=True)

    def loss(batch: Batch) -> Tensor:
        learned, weights = _learned(batch)
        targets = batch.tokens[:, 1:][learned]
        return _mean(nats(_logits(decoder, states(batch)[learned]), targets), weights)

    return loss


def distillation(student: Decoder, teacher: Decoder, temperature: float = 1.0) -> Objective:
    """Weighted mean KL divergence of the student's next-token distribution from the teacher's, both
    divided by `temperature` (Hinton et al. 2015). Student and teacher share the tokenizer.
    """
    student_states, teacher_states = _states(student), _states(teacher)
    divergences = _compiled(divergence, dynamic=True)
    teacher.requires_grad_(False)

    def loss(batch: Batch) -> Tensor:
        learned, weights = _learned(batch)
        with torch.no_grad():
            wanted = _logits(teacher, teacher_states(batch)[learned])
        said = _logits(student, student_states(batch)[learned])
        return _mean(divergences(said, wanted, temperature), weights) * temperature**2

    return loss


def _learned(batch: Batch) -> tuple[Tensor, Tensor]:
    weights = batch.weights[:, 1:]
    return weights > 0, weights[weights > 0]


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum().clamp_min(1e-6)


def _logits(decoder: Decoder, states: Tensor) -> Tensor:
    with torch.autocast(states.device.type, torch.bfloat16):
        return decoder.logits(states)


def _states(decoder: Decoder) -> Callable[[Batch], Tensor]:
    """The decoder's hidden states of a batch."""
    states = _compiled(decoder.states, dynamic=False)

    def run(batch: Batch) -> Tensor:
        with torch.autocast(batch.tokens.device.type, torch.bfloat16):
            return states(batch.tokens[:, :-1], sees(batch.documents[:, :-1]))

    return run


def _compiled(function: Callable[..., Tensor], *, dynamic: bool) -> Callable[..., Tensor]:
    """The function, compiled if a C++ compiler is available."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    return torch.compile(function, dynamic=dynamic) if compiler else function
