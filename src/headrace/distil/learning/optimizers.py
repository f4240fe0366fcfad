"""Muon for the matrices of layers, AdamW for all else; their state as tensors of a file."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

# Muon's updates have the same norm however small the gradient is, so a matrix grows to 1 / its decay.
# Without a bound, the products of queries and keys reached 1,300 within 18 million tokens: each query
# attended to one key, and attention stopped learning (Kimi K2, 2025, clips them for the same reason).
SCORING_DECAY, MATRIX_DECAY = 0.2, 0.05
_TABLES = ("embed", "lm_head", "wte", "wpe")


class Optimizers:
    """Muon for matrices, where it needs about half of AdamW's steps; tables and scales are not linear maps
    of hidden states, so they stay with AdamW (Jordan et al. 2024)."""

    def __init__(
        self, named: Mapping[str, nn.Parameter], matrix_rate: float | None, other_rate: float
    ) -> None:
        """`matrix_rate` None: AdamW alone, as adapters are trained."""
        self._named, self._rates = named, (matrix_rate or other_rate, other_rate)
        matrices = {name: p for name, p in named.items() if p.dim() == 2 and not _is_table(name)}
        if matrix_rate is None:
            matrices = {}
        scoring = [p for name, p in matrices.items() if "q_proj" in name or "k_proj" in name]
        rest = [p for name, p in matrices.items() if "q_proj" not in name and "k_proj" not in name]
        others = [p for name, p in named.items() if name not in matrices]
        self._matrices = frozenset(matrices)
        self._both: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                [
                    {"params": scoring, "weight_decay": SCORING_DECAY},
                    {"params": rest, "weight_decay": MATRIX_DECAY},
                ],
                lr=self._rates[0],
                adjust_lr_fn="original",
            ),
            torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        ]

    def step(self, share: float) -> None:
        """One step at a share of the full rates."""
        for optimizer, full in zip(self._both, self._rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = full * share
            optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """Weights and state, by name."""
        found = {f"weight.{name}": value.detach().cpu() for name, value in self._named.items()}
        for name, parameter in self._named.items():
            for optimizer in self._both:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if torch.is_tensor(value) and value.dim():
                        found[f"{key}.{name}"] = value.cpu()
        return found

    def load(self, tensors: Mapping[str, Tensor], step: int, device: torch.device) -> None:
        """Go on after `step` steps with what `tensors` gave."""
        muon, adamw = self._both
        count = torch.tensor(float(step), device=device)
        with torch.no_grad():
            for name, parameter in self._named.items():
                parameter.copy_(tensors[f"weight.{name}"])
                if not step:
                    continue
                if name in self._matrices:
                    muon.state[parameter] = {"momentum_buffer": tensors[f"momentum_buffer.{name}"]}
                else:
                    moments = {key: tensors[f"{key}.{name}"] for key in ("exp_avg", "exp_avg_sq")}
                    adamw.state[parameter] = {"step": count.clone(), **moments}


def _is_table(name: str) -> bool:
    return any(word in name for word in _TABLES)
