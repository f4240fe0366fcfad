"""Common parts of the chat models' recipes: command line, checks, schedule, from data to model folder."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from corpus import MissingData
from decoder import Decoder
from export import write_chat_model
from loop import WARM_UP_STEPS, OtherRun, Plan, Run, load_checkpoint, train
from tokenizers import Tokenizer

MIN_MEMORY_GIB = 6.0
ANY_STEPS = 10_000_000


class MissingMemory(Exception):
    """The machine has less free memory than the recipe needs."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line's options; `device` is the one found."""

    data: Path
    work: Path
    out: Path
    seed: int
    steps: int
    decay: int
    workers: int
    export: bool
    teacher: Path | None
    start: Path | None
    minutes: float
    device: torch.device


def read_options(
    description: str, *, steps: int, decay: int, teacher: bool = False, start: bool = False
) -> Options:
    """Parses the command line; `steps` and `decay` are its defaults. Raises MissingMemory."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="folder with text/, sql/ and intents/")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for checkpoints, tokenizer and curve"
    )
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    if teacher:
        parser.add_argument("--teacher", type=Path, required=True, help="model folder to learn from")
    if start:
        parser.add_argument("--start", type=Path, help="weights to start from, instead of random ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--steps", type=int, default=steps, help="steps before the decay; may be raised later"
    )
    parser.add_argument("--decay", type=int, default=decay, help="steps of the decay; 0 stays on the plateau")
    parser.add_argument(
        "--minutes", type=float, default=0, help="of the whole run, instead of --steps and --decay"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0, help="processes that prepare batches (on a GPU: 8)")
    parser.add_argument(
        "--export", action="store_true", help="only write the model folder from the checkpoint"
    )
    given = vars(parser.parse_args())
    torch.set_num_threads(given.pop("threads"))
    given.setdefault("teacher", None)
    given.setdefault("start", None)
    free_gib = psutil.virtual_memory().available / 2**30
    if free_gib < MIN_MEMORY_GIB:
        raise MissingMemory(
            f"{free_gib:.1f} GiB of memory are free, the recipe needs {MIN_MEMORY_GIB:.0f}: "
            "stop other programs"
        )
    given["work"].mkdir(parents=True, exist_ok=True)
    return Options(**given, device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def chat_plan(options: Options, *, context: int, other_rate: float) -> Plan:
    """The schedule of a chat model: short windows until the decay, then windows of the full context. By
    minutes there are as many steps as fit, on a GPU of sixteen times the tokens."""
    is_timed, on_gpu = options.minutes > 0, options.device.type == "cuda"
    return Plan(
        seed=options.seed,
        steps=ANY_STEPS if is_timed else options.steps,
        decay_steps=options.decay,
        tokens_per_step=65_536 if is_timed and on_gpu else 4096,
        minutes=options.minutes,
        length=256,
        long_length=context,
        matrix_rate=0.02,
        other_rate=other_rate,
        measure_every_steps=500,
    )


def encoder_plan(
    options: Options,
    *,
    tokens_per_step: int,
    length: int,
    other_rate: float,
    warm_up_steps: int = WARM_UP_STEPS,
) -> Plan:
    """The schedule of an encoder: rows of one nominal length."""
    return Plan(
        seed=options.seed,
        steps=options.steps,
        decay_steps=options.decay,
        tokens_per_step=tokens_per_step,
        length=length,
        long_length=length,
        matrix_rate=0.01,
        other_rate=other_rate,
        measure_every_steps=100,
        warm_up_steps=warm_up_steps,
    )


def run_recipe(
    read: Callable[[], Options],
    prepare: Callable[[Options], tuple[Run, Tokenizer]],
    write: Callable[[Decoder, Tokenizer, Path], None] = write_chat_model,
) -> int:
    """Trains, or with `--export` only loads, and writes the model folder; returns the exit status."""
    try:
        options = read()
        run, tokenizer = prepare(options)
        if options.export:
            load_checkpoint(run)
        else:
            train(run)
    except (MissingData, MissingMemory, OtherRun) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write(run.decoder.cpu(), tokenizer, options.out)
    print(f"{options.out}: step {run.step}")
    return 0
