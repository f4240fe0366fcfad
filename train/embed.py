"""Trains `embed`, the sentence encoder inside the package, on pairs of related texts.

    python train/embed.py --data FOLDER --work FOLDER --out FOLDER --start FILE

It starts from the embeddings and first layers of `mini` (`--start`: its model.safetensors) and uses its
tokenizer: copy `tokenizer.json` from mini's folder to the work folder. Without a start, a new tokenizer can
be trained.
Needs the packages of `headrace[train]`. The same data, seed and steps give the same model on one machine.
"""

import sys

import packages  # noqa: F401 - checks for packages, so it comes before their imports
import torch
from contrast import contrast, encode_texts
from decoder import Decoder, Shape
from export import write_encoder
from loop import Run
from nearness import centroid_accuracy, nearest_share
from pairs import LONGEST, Pairs, PairSources, read_pair_sources, sql_pair
from recipe import Options, encoder_plan, read_options, run_recipe
from sources import VOCABULARY, prepare_tokenizer, read_sources, tokenizer_of_mini
from tokenizers import Tokenizer

SHAPE = Shape(
    vocabulary=VOCABULARY, hidden=384, intermediate=1024, layers=2, heads=6, kv_heads=2, context=512
)
STEPS, DECAY_STEPS = 500, 700
PAIRS_PER_STEP = 96
MEASURED = 500  # held-out questions of each kind


def prepare(options: Options) -> tuple[Run, Tokenizer]:
    """Reads the data and builds the run. Raises MissingData."""
    if options.start is None and not (options.work / "tokenizer.json").is_file():
        prepare_tokenizer(read_sources(options.data), options.work)
    tokenizer = tokenizer_of_mini(options.work)
    sources = read_pair_sources(options.data)
    decoder = Decoder(SHAPE)
    decoder.initialize(torch.Generator().manual_seed(options.seed))
    if options.start is not None:
        decoder.start_from(options.start)
    decoder.to(options.device)
    run = Run(
        plan=encoder_plan(
            options, tokens_per_step=2 * PAIRS_PER_STEP * LONGEST, length=LONGEST, other_rate=3e-3
        ),
        work=options.work,
        device=options.device,
        decoder=decoder,
        draw=Pairs(sources, tokenizer).batch,
        loss=contrast(decoder),
        measure=lambda: measure(decoder, tokenizer, sources, options.device),
        workers=options.workers,
    )
    return run, tokenizer


def measure(
    decoder: Decoder, tokenizer: Tokenizer, sources: PairSources, device: torch.device
) -> dict[str, float]:
    """Accuracy on some held-out questions of each kind."""

    def encode(texts: list[str]):
        return encode_texts(decoder, tokenizer, texts, device)

    tasks = [conversation.messages for _, conversation in sources.shell.held_out(MEASURED, seed=1)]
    asked = [sql_pair(question) for question, _ in sources.sql.held_out(MEASURED, seed=1)]
    remarks = sources.intents["val"][:: max(len(sources.intents["val"]) // MEASURED, 1)]
    return {
        "intents exact": centroid_accuracy(encode, sources.intents["train"], remarks),
        "shell exact": nearest_share(encode, *([str(m[at]["content"]) for m in tasks] for at in (0, 1))),
        "sql exact": nearest_share(encode, *([pair[at] for pair in asked] for at in (0, 1))),
    }


def main() -> int:
    """Trains, exports."""
    description = "Trains the sentence encoder that ships inside the package."
    return run_recipe(
        lambda: read_options(description, steps=STEPS, decay=DECAY_STEPS, start=True), prepare, write_encoder
    )


if __name__ == "__main__":
    sys.exit(main())
