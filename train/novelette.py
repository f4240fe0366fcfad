"""Trains `novelette`, the small story model inside the package.

    python train/novelette.py --data FOLDER --work FOLDER --out FOLDER

Needs the packages of `headrace[train]`. The same data, seed and steps give the same model on the same
machine. An interrupted run resumes from its last checkpoint; `--export` only writes the model folder from
it.
"""

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from corpus import MissingData, Novels, read_novels
from decoder import Decoder, Shape
from export import write_story_model
from safetensors.torch import load_file, save_file
from stream import BEGIN_ID, Stream, byte_lengths, encode, train_tokenizer
from tokenizers import Tokenizer
from torch.nn import functional as F

PEAK_RATE = 3e-3
WARM_UP_STEPS = 100
DECAY_SHARE = 0.25
SHORT, LONG = 256, 512  # tokens in a window before and during the decay
TOKENS_PER_STEP = 4096
PLAIN_SHARE = 0.5
CHECKPOINT_EVERY_S = 45.0
MEASURE_EVERY_STEPS = 200


class OtherRun(Exception):
    """The work folder belongs to a run with another seed."""


@dataclass(slots=True)
class Run:
    """Everything that one training run needs."""

    seed: int
    steps: int
    work: Path
    tokenizer: Tokenizer
    plain: Stream
    other: Stream
    held_out: Stream
    decoder: Decoder
    optimizer: torch.optim.AdamW
    step: int = 0


def rate(step: int, steps: int) -> float:
    """Warm-up, plateau, then a cosine to zero over the last part.

    Every checkpoint of the plateau can start a longer run: `--steps` may be increased.
    """
    decay_begins = steps * (1 - DECAY_SHARE)
    if step < decay_begins:
        return PEAK_RATE * min(1.0, (step + 1) / WARM_UP_STEPS)
    return PEAK_RATE * 0.5 * (1 + math.cos(math.pi * (step - decay_begins) / (steps - decay_begins)))


def batch(run: Run) -> torch.Tensor:
    """The windows of this step: a function of seed and step alone, so a resumed run draws the same."""
    random = np.random.default_rng([run.seed, run.step])
    length = SHORT if run.step < run.steps * (1 - DECAY_SHARE) else LONG
    count = TOKENS_PER_STEP // length
    plain = round(count * PLAIN_SHARE)
    return torch.cat(
        [run.plain.windows(plain, length + 1, random), run.other.windows(count - plain, length + 1, random)]
    )


def negative_log_likelihood(decoder: Decoder, windows: torch.Tensor) -> torch.Tensor:
    """Per predicted token, in nats."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = decoder(windows[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten(), reduction="none")


def train_step(run: Run) -> float:
    """One update; returns the mean loss in nats per token."""
    for group in run.optimizer.param_groups:
        group["lr"] = rate(run.step, run.steps)
    loss = negative_log_likelihood(run.decoder, batch(run)).mean()
    run.optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.decoder.parameters(), 1.0)
    run.optimizer.step()
    run.step += 1
    return loss.item()


@torch.no_grad()
def bits_per_byte(run: Run, most_windows: int | None = None) -> float:
    """Of the held-out novel, in windows of the full context, without context from before the window."""
    body = run.decoder.shape.context - 1
    count = len(run.held_out.tokens) // body
    text = torch.from_numpy(run.held_out.tokens[: count * body].astype(np.int64)).view(count, body)
    windows = torch.cat([torch.full((count, 1), BEGIN_ID), text], dim=1)
    if most_windows is not None:
        windows = windows[:: max(1, count // most_windows)]
    nats = sum(negative_log_likelihood(run.decoder, part).sum().item() for part in windows.split(8))
    return nats / math.log(2) / int(byte_lengths(run.tokenizer)[windows[:, 1:].numpy()].sum())


def save_checkpoint(run: Run) -> None:
    """Weights, optimizer moments and step, in one file, written atomically."""
    tensors = {f"weight.{name}": value.detach() for name, value in run.decoder.named_parameters()}
    for name, parameter in run.decoder.named_parameters():
        state = run.optimizer.state[parameter]
        tensors |= {f"{key}.{name}": state[key] for key in ("exp_avg", "exp_avg_sq")}
    tensors |= {"step": torch.tensor([run.step]), "seed": torch.tensor([run.seed])}
    save_file(tensors, run.work / "checkpoint.partial")
    (run.work / "checkpoint.partial").replace(run.work / "checkpoint.safetensors")


def load_checkpoint(run: Run) -> None:
    """Resumes from the last checkpoint of the work folder, if there is one."""
    path = run.work / "checkpoint.safetensors"
    if not path.is_file():
        return
    tensors = load_file(path)
    if int(tensors["seed"]) != run.seed:
        raise OtherRun(f"{run.work} holds a run of seed {int(tensors['seed'])}: pass it, or another --work")
    run.step = int(tensors["step"])
    with torch.no_grad():
        for name, parameter in run.decoder.named_parameters():
            parameter.copy_(tensors[f"weight.{name}"])
            moments = {key: tensors[f"{key}.{name}"] for key in ("exp_avg", "exp_avg_sq")}
            run.optimizer.state[parameter] = {"step": torch.tensor(float(run.step)), **moments}


def prepare(options: argparse.Namespace) -> Run:
    """Reads the novels, trains or loads the tokenizer, builds the decoder."""
    novels: Novels = read_novels(options.data)
    options.work.mkdir(parents=True, exist_ok=True)
    shape = Shape()
    tokenizer_path = options.work / "tokenizer.json"
    if tokenizer_path.is_file():
        tokenizer = Tokenizer.from_file(str(tokenizer_path))
    else:
        tokenizer = train_tokenizer(novels.plain, shape.vocabulary)
        tokenizer.save(str(tokenizer_path))
    decoder = Decoder(shape)
    decoder.initialize(torch.Generator().manual_seed(options.seed))
    matrices = [parameter for parameter in decoder.parameters() if parameter.dim() == 2]
    scales = [parameter for parameter in decoder.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": scales, "weight_decay": 0.0}]
    run = Run(
        seed=options.seed,
        steps=options.steps,
        work=options.work,
        tokenizer=tokenizer,
        plain=encode(tokenizer, novels.plain),
        other=encode(tokenizer, novels.other),
        held_out=encode(tokenizer, novels.held_out),
        decoder=decoder,
        optimizer=torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True),
    )
    load_checkpoint(run)
    return run


def note_losses(run: Run, loss: float) -> None:
    """Adds a row to `loss.csv` (rows of a later step are left from an interrupted run) and plots it."""
    path = run.work / "loss.csv"
    rows = path.read_text().splitlines() if path.is_file() else []
    rows = [row for row in rows if int(row.split(",")[0]) < run.step]
    rows.append(f"{run.step},{loss:.4f},{bits_per_byte(run, 32):.4f}")
    path.write_text("\n".join(rows) + "\n")
    draw_curve([tuple(float(cell) for cell in row.split(",")) for row in rows], run.work / "loss.png")


def draw_curve(rows: list[tuple[float, ...]], path: Path) -> None:
    """A plot of (step, training loss, held-out bits per byte)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps, losses, held_out = zip(*rows, strict=True)
    figure, left = pyplot.subplots(figsize=(8, 4.5))
    left.plot(steps, losses, color="tab:blue")
    left.set_xlabel("step")
    left.set_ylabel("training loss, nats per token", color="tab:blue")
    right = left.twinx()
    right.plot(steps, held_out, color="tab:orange")
    right.set_ylabel("held-out novel, bits per byte", color="tab:orange")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def train(run: Run) -> None:
    """Runs to the last step with progress on one line; saves a checkpoint at most every minute."""
    recent: list[float] = []
    began, saved, first = time.monotonic(), time.monotonic(), run.step
    while run.step < run.steps:
        recent.append(train_step(run))
        now = time.monotonic()
        if run.step % 10 == 0:
            speed = (run.step - first) * TOKENS_PER_STEP / (now - began)
            left_min = (run.steps - run.step) * TOKENS_PER_STEP / speed / 60
            loss = sum(recent[-50:]) / len(recent[-50:])
            line = f"step {run.step}/{run.steps}  loss {loss:.3f}  {speed:,.0f} tokens/s"
            print(f"\r{line}  {left_min:.0f} min left   ", end="", file=sys.stderr, flush=True)
        if run.step % MEASURE_EVERY_STEPS == 0:
            note_losses(run, sum(recent) / len(recent))
            recent.clear()
        if now - saved > CHECKPOINT_EVERY_S:
            save_checkpoint(run)
            saved = now
    print(file=sys.stderr)
    save_checkpoint(run)


def main() -> int:
    """Parses the command line, trains, exports, prints the model's quality."""
    parser = argparse.ArgumentParser(
        description="Trains the small story model that ships inside the package."
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with the two archives of novels")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for checkpoints, tokenizer and loss curve"
    )
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--export", action="store_true", help="only write the model folder from the last checkpoint"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        run = prepare(options)
    except (MissingData, OtherRun) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not options.export:
        train(run)
    write_story_model(run.decoder, run.tokenizer, options.out)
    print(f"{options.out}: step {run.step}, held-out novel {bits_per_byte(run):.4f} bits per byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
