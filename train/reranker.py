"""Trains `reranker`, the small late-interaction model inside the package that orders passages for a question.

    python train/reranker.py --data FOLDER --work FOLDER --out FOLDER --start FILE

It starts from the embeddings and first layers of `mini` (`--start`: its model.safetensors) and uses its
tokenizer: copy `tokenizer.json` from mini's folder to the work folder. Needs the packages of
`headrace[train]`. The same data, seed and steps give the same model on one machine.
"""

import sys

import packages  # noqa: F401 - checks for packages, so it comes before their imports
import torch
from data.passages import PassageSources, read_passages
from decoder import Shape
from export import write_reranker
from loop import Run
from rank import LONGEST, ROWS, RankBatches, Reranker, first_share, rank_objective
from recipe import Options, encoder_plan, read_options, run_recipe
from sources import VOCABULARY, tokenizer_of_mini
from tokenizers import Tokenizer

SHAPE = Shape(
    vocabulary=VOCABULARY, hidden=384, intermediate=1024, layers=2, heads=6, kv_heads=2, context=512
)
STEPS, DECAY_STEPS = 300, 400
QUESTIONS_PER_STEP = 32
MEASURED = 200  # held-out questions of each kind


def prepare(options: Options) -> tuple[Run, Tokenizer]:
    """Reads the data and builds the run. Raises MissingData."""
    tokenizer = tokenizer_of_mini(options.work)
    sources = read_passages(options.data)
    reranker = Reranker(SHAPE)
    reranker.initialize(torch.Generator().manual_seed(options.seed))
    if options.start is not None:
        reranker.decoder.start_from(options.start)
    reranker.to(options.device)
    run = Run(
        plan=encoder_plan(
            options,
            tokens_per_step=QUESTIONS_PER_STEP * ROWS * LONGEST,
            length=LONGEST,
            other_rate=1e-3,
            warm_up_steps=20,
        ),
        work=options.work,
        device=options.device,
        decoder=reranker,
        draw=RankBatches(sources, tokenizer).batch,
        loss=rank_objective(reranker),
        measure=lambda: measure(reranker, tokenizer, sources, options.device),
        workers=options.workers,
    )
    return run, tokenizer


def measure(
    reranker: Reranker, tokenizer: Tokenizer, sources: PassageSources, device: torch.device
) -> dict[str, float]:
    """How many of some held-out questions have their own passage first, among all of theirs."""
    return {
        f"{name} exact": first_share(reranker, tokenizer, questions[:MEASURED], device)
        for name, questions in sources.held_out.items()
    }


def main() -> int:
    """Trains, exports."""
    description = "Trains the reranker that ships inside the package."
    read = lambda: read_options(description, steps=STEPS, decay=DECAY_STEPS, start=True)  # noqa: E731
    return run_recipe(read, prepare, write_reranker)


if __name__ == "__main__":
    sys.exit(main())
