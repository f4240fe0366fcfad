"""Trains `nano`, the draft model for `mini`, by distillation on the answers of `mini`.

    python train/nano.py --data FOLDER --teacher FOLDER --work FOLDER --out FOLDER

`--teacher` is the folder of `mini`. Needs the packages of `headrace[train]` and headrace itself.
"""

import sys

import packages  # noqa: F401 - checks for packages, so it comes before their imports
import torch
from corpus import MissingData
from data.prose import Stories
from decoder import Decoder, Shape
from dialogue import Writer
from distill import record_answers
from export import read_model
from loop import Run
from measure import Measure
from mixture import Mixture, Text
from objective import distillation
from recipe import Options, chat_plan, read_options, run_recipe
from sources import PROSE_SHARE, STORIES_SHARE, VOCABULARY, Sources, jobs, read_sources
from stream import load_stream
from tokenizers import Tokenizer

from headrace import LLM

# Two layers, the minimum for copying: more layers cost a draft more in thread synchronization than in
# matrix products. A token takes 29 us at int4; with four layers and as many parameters it takes 40.
SHAPE = Shape(
    vocabulary=VOCABULARY, hidden=128, intermediate=512, layers=2, heads=4, kv_heads=2, context=1024
)
STEPS, DECAY_STEPS = 2_000, 1_000
ANSWERS = 12_000  # per task; for stories an eighth of it
STORY_TEMPERATURE = 0.7


def make_mixture(sources: Sources, tokenizer: Tokenizer, options: Options) -> Mixture:
    """The tasks' prompts with the teacher's answers, and prose."""
    writer, seed = Writer(tokenizer), options.seed
    stories = Stories(sources.novels)
    with LLM(options.teacher, cache_dir=None) as llm:
        parts = [
            (record_answers(llm, writer, job, ANSWERS, options.work / f"{job.name}.jsonl", seed=seed), share)
            for job, share in jobs(sources)
        ]
        path = options.work / "stories.jsonl"
        told = record_answers(
            llm, writer, stories, ANSWERS // 8, path, seed=seed, temperature=STORY_TEMPERATURE
        )
    novels = sources.novels.plain * 2 + sources.novels.other
    prose = load_stream(options.work / "prose.npz", tokenizer, novels)
    return Mixture(writer, [*parts, (told, STORIES_SHARE)], [Text(prose, PROSE_SHARE, 1.0)])


def prepare(options: Options) -> tuple[Run, Tokenizer]:
    """Reads data and teacher, records the answers, builds the run. Raises MissingData."""
    assert options.teacher is not None
    if not (options.teacher / "model.safetensors").is_file():
        raise MissingData(f"{options.teacher} holds no model.safetensors: pass --teacher the folder of mini")
    sources = read_sources(options.data)
    teacher, tokenizer = read_model(options.teacher)
    decoder = Decoder(SHAPE)
    decoder.initialize(torch.Generator().manual_seed(options.seed))
    decoder.to(options.device)
    run = Run(
        plan=chat_plan(options, context=SHAPE.context, other_rate=5e-3),
        work=options.work,
        device=options.device,
        decoder=decoder,
        draw=make_mixture(sources, tokenizer, options).batch,
        loss=distillation(decoder, teacher.to(options.device)),
        measure=Measure(decoder, tokenizer, sources, options.device),
        workers=options.workers,
    )
    return run, tokenizer


def main() -> int:
    """Trains, exports."""
    description = "Trains the draft model for mini by distillation."
    return run_recipe(
        lambda: read_options(description, steps=STEPS, decay=DECAY_STEPS, teacher=True), prepare
    )


if __name__ == "__main__":
    sys.exit(main())
