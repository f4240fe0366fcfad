"""Trains `mini`, the chat model inside the package: shell commands, SQL, tool calls, stories.

    python train/mini.py --data FOLDER --work FOLDER --out FOLDER

Needs the packages of `headrace[train]`; uses a CUDA device if there is one. The same data, seed and steps
give the same model on the same machine. An interrupted run resumes from its last checkpoint.
"""

import sys

import packages  # noqa: F401 - checks for packages, so it comes before their imports
import torch
from decoder import Decoder, Shape
from loop import Run
from measure import Measure
from objective import likelihood
from recipe import Options, chat_plan, read_options, run_recipe
from sources import VOCABULARY, make_mixture, prepare_tokenizer, read_sources
from tokenizers import Tokenizer

SHAPE = Shape(
    vocabulary=VOCABULARY, hidden=384, intermediate=1024, layers=6, heads=6, kv_heads=2, context=1024
)
STEPS, DECAY_STEPS = 4_100, 1_700


def prepare(options: Options) -> tuple[Run, Tokenizer]:
    """Reads the data and builds the run. Raises MissingData."""
    sources = read_sources(options.data)
    tokenizer = prepare_tokenizer(sources, options.work)
    decoder = Decoder(SHAPE)
    decoder.initialize(torch.Generator().manual_seed(options.seed))
    decoder.to(options.device)
    run = Run(
        plan=chat_plan(options, context=SHAPE.context, other_rate=3e-3),
        work=options.work,
        device=options.device,
        decoder=decoder,
        draw=make_mixture(sources, tokenizer, options.work).batch,
        loss=likelihood(decoder),
        measure=Measure(decoder, tokenizer, sources, options.device),
        workers=options.workers,
    )
    return run, tokenizer


def main() -> int:
    """Trains, exports."""
    description = "Trains the chat model that ships inside the package."
    return run_recipe(lambda: read_options(description, steps=STEPS, decay=DECAY_STEPS), prepare)


if __name__ == "__main__":
    sys.exit(main())
