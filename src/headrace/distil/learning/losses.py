"""What a student minimizes: divergence from a teacher's distribution, whole or its likeliest tokens."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def divergence(said: Tensor, wanted: Tensor, temperature: float = 1.0) -> Tensor:
    """KL of the student's distribution from the teacher's, [N], both as logits [N, V] divided by
    `temperature` (Hinton et al. 2015)."""
    said_logs = F.log_softmax(said.float() / temperature, -1)
    wanted_logs = F.log_softmax(wanted.float() / temperature, -1)
    return F.kl_div(said_logs, wanted_logs, reduction="none", log_target=True).sum(-1)


def top_divergence(said: Tensor, ids: Tensor, logs: Tensor, tail: Tensor) -> Tensor:
    """The same [N] where of the teacher only the log probabilities `logs` [N, k] of the tokens `ids` [N, k]
    are known, and `tail` [N], that of all other tokens together, which count as one."""
    said_logs = F.log_softmax(said.float(), -1).gather(-1, ids)
    said_tail = torch.log1p(-said_logs.exp().sum(-1).clamp(max=1 - 1e-6))
    wanted = torch.cat([logs, tail[:, None]], -1).float()
    wanted = wanted - torch.logsumexp(wanted, -1, keepdim=True)  # half floats do not add up to 1
    return F.kl_div(
        torch.cat([said_logs, said_tail[:, None]], -1), wanted, reduction="none", log_target=True
    ).sum(-1)


def likelihood(said: Tensor, targets: Tensor) -> Tensor:
    """Nats [N] of the targets [N] under logits [N, V]."""
    return F.cross_entropy(said.float(), targets, reduction="none")
