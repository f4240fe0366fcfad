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

from headrace.distil.learning.optimizers import Optimizers

CHECKPOINT_EVERY_S = 45.0
WARM_UP_STEPS = 100
NO_DECAY = -1
DECAY_PART, DECAY_SPEED = 0.3, 0.9
"""Of the minutes of a run; steps of the decay take longer, for some have windows of the whole context."""
MAX_PLANNED = 20_000
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
    optimizers: Optimizers = field(init=False)

    def __post_init__(self) -> None:
        self.optimizers = Optimizers(
            dict(self.decoder.named_parameters()), self.plan.matrix_rate, self.plan.other_rate
        )

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
    on_device = Batch(*(part.to(run.device) for part in (batch.tokens, batch.documents, batch.weights)))
    loss = run.loss(on_device)
    run.decoder.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(run.decoder.parameters(), 1.0)
    run.optimizers.step(rate_share(run))
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
    tensors = run.optimizers.tensors()
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
    run.optimizers.load(tensors, run.step, run.device)
