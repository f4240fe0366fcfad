"""Trains `tagger`, the small encoder inside the package that extracts entities and personal data.

    python train/tagger.py --data FOLDER --work FOLDER --out FOLDER --start FILE

It starts from the embeddings and first layers of `mini` (`--start`: its model.safetensors) and uses its
tokenizer: copy `tokenizer.json` from mini's folder to the work folder. Needs the packages of
`headrace[train]`. The same data, seed and steps give the same model on one machine.
"""

import sys

import packages  # noqa: F401 - checks for packages, so it comes before their imports
import torch
from data.entities import TaggedSources, read_tagged
from decoder import Shape
from export import write_tagger
from loop import Run
from recipe import Options, encoder_plan, read_options, run_recipe
from sources import VOCABULARY, tokenizer_of_mini
from spans import f1
from tag import TagBatches, Tagger, tag_objective, tag_texts
from tokenizers import Tokenizer

SHAPE = Shape(
    vocabulary=VOCABULARY, hidden=384, intermediate=1024, layers=2, heads=6, kv_heads=2, context=1024
)
STEPS, DECAY_STEPS = 500, 700
ROWS_PER_STEP = 64
LENGTH = 64  # nominal tokens per row
MEASURED = 150  # held-out texts of each kind


def prepare(options: Options) -> tuple[Run, Tokenizer]:
    """Reads the data and builds the run. Raises MissingData."""
    tokenizer = tokenizer_of_mini(options.work)
    sources = read_tagged(options.data)
    tagger = Tagger(SHAPE)
    tagger.initialize(torch.Generator().manual_seed(options.seed))
    if options.start is not None:
        tagger.decoder.start_from(options.start)
    tagger.to(options.device)
    run = Run(
        plan=encoder_plan(
            options, tokens_per_step=ROWS_PER_STEP * LENGTH, length=LENGTH, other_rate=1e-3, warm_up_steps=20
        ),
        work=options.work,
        device=options.device,
        decoder=tagger,
        draw=TagBatches(sources, tokenizer).batch,
        loss=tag_objective(tagger, tokenizer),
        measure=lambda: measure(tagger, tokenizer, sources, options.device),
        workers=options.workers,
    )
    return run, tokenizer


def measure(
    tagger: Tagger, tokenizer: Tokenizer, sources: TaggedSources, device: torch.device
) -> dict[str, float]:
    """F1 on some held-out texts of each kind."""
    return {
        f"{name} exact": f1(tag_texts(tagger, tokenizer, texts[:MEASURED], device), texts[:MEASURED])
        for name, texts in sources.held_out.items()
    }


def main() -> int:
    """Trains, exports."""
    description = "Trains the tagger that ships inside the package."
    read = lambda: read_options(description, steps=STEPS, decay=DECAY_STEPS, start=True)  # noqa: E731
    return run_recipe(read, prepare, write_tagger)


if __name__ == "__main__":
    sys.exit(main())
