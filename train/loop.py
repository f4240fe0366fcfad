"""The training loop of the chat models: warm-up, plateau, decay; progress, evaluation, checkpoints."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from ahead import DrawRequest, drawn_ahead
from curve import note_measures
from decoder import Decoder
from mixture import Batch, Draw
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CHECKPOINT_EVERY_S = 45.0
WARM_UP_STEPS = 100
NO_DECAY = -1
DECAY_PART, DECAY_SPEED = 0.3, 0.9
"""Of the minutes of a run; steps of the decay take longer, for some have windows of the whole context."""
MAX_PLANNED = 20_000
# Muon's updates have the same norm however small the gradient is, so a matrix grows to 1 / its decay.
# Without a bound, the products of queries and keys reached 1,300 within 18 million tokens: each query
# attended to one key, and attention stopped learning (Kimi K2, 2025, clips them for the same reason).
SCORING_DECAY, MATRIX_DECAY = 0.2, 0.05
LONG_EVERY = 8


class OtherRun(Exception):
    """The work folder belongs to a run with another seed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The schedule of a run. Windows have `length` tokens; during the decay, each eighth step has windows
    of `long_length`, in which running text teaches long distances at extra cost for attention.
    """

    seed: int
    steps: int  # before the decay
    decay_steps: int  # None: the run stays on its plateau
    tokens_per_step: int
    length: int
    long_length: int
    matrix_rate: float
    other_rate: float
    measure_every_steps: int
    warm_up_steps: int = WARM_UP_STEPS
    minutes: float = 0
    """Of the whole run, in the place of steps; the last DECAY_PART of them is the decay."""


@dataclass(slots=True)
class Run:
    """Everything that one training run needs. `loss` computes the loss of a batch, `draw` the batch of a
    key, `measure` the metrics for the log and the plot.
    """

    plan: Plan
    work: Path
    device: torch.device
    decoder: Decoder
    draw: Draw
    loss: Callable[[Batch], Tensor]
    measure: Callable[[], dict[str, float]]
    workers: int = 0
    step: int = 0
    decay_from: int = NO_DECAY
    spent_s: float = 0
    matrices: list[nn.Parameter] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Muon for the matrices inside the layers, where it needs about half of AdamW's steps;
        # embeddings and scales are not linear maps of hidden states, so they stay with AdamW (Jordan
        # et al. 2024).
        named = dict(self.decoder.named_parameters())
        self.matrices = [p for name, p in named.items() if p.dim() == 2 and "embed" not in name]
        others = [p for name, p in named.items() if p.dim() != 2 or "embed" in name]
        scoring = [p for name, p in named.items() if "q_proj" in name or "k_proj" in name]
        rest = [p for p in self.matrices if not any(p is one for one in scoring)]
        self.optimizers = [
            torch.optim.Muon(
                [
                    {"params": scoring, "weight_decay": SCORING_DECAY},
                    {"params": rest, "weight_decay": MATRIX_DECAY},
                ],
                lr=self.plan.matrix_rate,
                adjust_lr_fn="original",
            ),
            torch.optim.AdamW(
                others, lr=self.plan.other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
            ),
        ]

    @property
    def last_step(self) -> int:
        """The last step of the run."""
        if self.decay_from != NO_DECAY:
            return self.decay_from + self.plan.decay_steps
        return max(self.plan.steps, self.step) + self.plan.decay_steps


def rate_share(run: Run) -> float:
    """Factor of the learning rates: a linear warm-up, a plateau, a linear decay to zero.

    Every checkpoint of the plateau can start a longer run: the number of steps may be increased at any
    time.
    """
    if run.decay_from != NO_DECAY:
        return max(0.0, 1 - (run.step - run.decay_from) / run.plan.decay_steps)
    return min(1.0, (run.step + 1) / run.plan.warm_up_steps)


def sees(documents: Tensor) -> Tensor:
    """What each token may attend to: earlier tokens of its own text, [batch, 1, length, length]."""
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return (documents[:, None, :, None] == documents[:, None, None, :]) & causal


def train(run: Run) -> None:
    """Runs to the last step; saves a checkpoint at least every minute."""
    load_checkpoint(run)
    saved = began = last = time.monotonic()
    first, losses = run.step, []
    while run.step < run.last_step:
        if run.decay_from == NO_DECAY and (run.step >= run.plan.steps or _is_late(run)):
            save_checkpoint(run, "plateau.safetensors")
            _begin_decay(run)
        for batch in _batches(run):
            losses.append(_step(run, batch))
            now = time.monotonic()
            run.spent_s += now - last
            last = now
            if run.step % 10 == 0:
                _say(run, sum(losses[-50:]) / len(losses[-50:]), (run.step - first) / (now - began))
            if run.step % run.plan.measure_every_steps == 0:
                note_measures(run.work, run.step, {"loss": sum(losses) / len(losses)} | run.measure())
                losses.clear()
            if now - saved > CHECKPOINT_EVERY_S:
                save_checkpoint(run)
                saved = now
            if run.decay_from == NO_DECAY and _is_late(run):
                break
    print(file=sys.stderr)
    save_checkpoint(run)


def _is_late(run: Run) -> bool:
    """Whether the minutes of the plateau are over."""
    return 0 < run.plan.minutes * 60 * (1 - DECAY_PART) <= run.spent_s


def _begin_decay(run: Run) -> None:
    """The decay has as many steps as the minutes that are left, or as the plan says."""
    run.decay_from = run.step
    if run.plan.minutes:
        left_s = max(0.0, run.plan.minutes * 60 - run.spent_s)
        steps = max(1, round(DECAY_SPEED * left_s * run.step / run.spent_s))
        run.plan = replace(run.plan, decay_steps=steps)


def _batches(run: Run) -> Iterator[Batch]:
    """The batches of the current phase."""
    end = run.last_step if run.decay_from != NO_DECAY else run.plan.steps
    end = min(end, run.step + MAX_PLANNED)
    wanted = [_wanted(run, step) for step in range(run.step, end)]
    if run.workers == 0:
        return (run.draw(*one) for one in wanted)
    return drawn_ahead(run.draw, wanted, run.workers)


def _wanted(run: Run, step: int) -> DrawRequest:
    long = run.decay_from != NO_DECAY and step % LONG_EVERY == 0
    length = run.plan.long_length if long else run.plan.length
    return (run.plan.seed, step), run.plan.tokens_per_step // length, length + 1


def _step(run: Run, batch: Batch) -> float:
    share = rate_share(run)
    for optimizer, full in zip(run.optimizers, (run.plan.matrix_rate, run.plan.other_rate), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = full * share
    on_device = Batch(*(part.to(run.device) for part in (batch.tokens, batch.documents, batch.weights)))
    loss = run.loss(on_device)
    run.decoder.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(run.decoder.parameters(), 1.0)
    for optimizer in run.optimizers:
        optimizer.step()
    run.step += 1
    return loss.item()


def _say(run: Run, loss: float, steps_per_s: float) -> None:
    left_min = (run.last_step - run.step) / steps_per_s / 60
    if run.plan.minutes and run.decay_from == NO_DECAY:
        left_min = run.plan.minutes - run.spent_s / 60
    speed = steps_per_s * run.plan.tokens_per_step
    line = f"step {run.step:,}/{run.last_step:,}  loss {loss:.3f}  {speed:,.0f} tokens/s"
    print(
        f"\r{line}  {left_min:,.0f} min left   ",
        end="" if sys.stderr.isatty() else "\n",
        file=sys.stderr,
        flush=True,
    )


def save_checkpoint(run: Run, name: str = "checkpoint.safetensors") -> None:
    """Weights, optimizer state and step, in one file, written atomically."""
    tensors = {f"weight.{name}": value.detach().cpu() for name, value in run.decoder.named_parameters()}
    for parameter_name, parameter in run.decoder.named_parameters():
        for optimizer in run.optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                if torch.is_tensor(value) and value.dim():
                    tensors[f"{key}.{parameter_name}"] = value.cpu()
    numbers = {"step": run.step, "seed": run.plan.seed, "decay_from": run.decay_from}
    numbers |= {"decay_steps": run.plan.decay_steps, "spent_s": round(run.spent_s)}
    tensors |= {key: torch.tensor([value]) for key, value in numbers.items()}
    save_file(tensors, run.work / "checkpoint.partial")
    (run.work / "checkpoint.partial").replace(run.work / name)


def load_checkpoint(run: Run) -> None:
    """Resumes from the last checkpoint of the work folder, if there is one."""
    path = run.work / "checkpoint.safetensors"
    if not path.is_file():
        return
    tensors = load_file(path, device=str(run.device))
    if int(tensors["seed"]) != run.plan.seed:
        raise OtherRun(f"{run.work} holds a run of seed {int(tensors['seed'])}: pass it, or another --work")
    run.step, run.decay_from = int(tensors["step"]), int(tensors["decay_from"])
    if run.plan.minutes:
        run.spent_s = float(tensors["spent_s"])
        if run.decay_from != NO_DECAY:
            run.plan = replace(run.plan, decay_steps=int(tensors["decay_steps"]))
    muon, adamw = run.optimizers
    step = torch.tensor(float(run.step), device=run.device)
    with torch.no_grad():
        for name, parameter in run.decoder.named_parameters():
            parameter.copy_(tensors[f"weight.{name}"])
            if any(parameter is matrix for matrix in run.matrices):
                muon.state[parameter] = {"momentum_buffer": tensors[f"momentum_buffer.{name}"]}
            else:
                moments = {key: tensors[f"{key}.{name}"] for key in ("exp_avg", "exp_avg_sq")}
                adamw.state[parameter] = {"step": step.clone(), **moments}
