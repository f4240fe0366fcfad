"""Trains `mini`, the chat model inside the package: shell commands, SQL, tool calls, stories.

    python train/mini.py --data FOLDER --work FOLDER --out FOLDER

Needs the packages of `headrace[train]`; uses a CUDA device where there is one. Same data, seed and steps give
the same model on the same machine. A run that was stopped goes on from its last checkpoint.
"""

import argparse
import math
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from corpus import MissingData
from data.documents import read_documents
from data.prose import Novels, Stories, read_novels
from data.shell import Shell
from data.sql import Sql
from data.talk import Talk
from data.tool_calls import ToolCalls
from decoder import Decoder, Shape
from dialogue import Conversation, Writer, make_tokenizer
from export import write_chat_model
from loop import OtherRun, Plan, Run, load_checkpoint, sees, train
from mixture import Batch, Mixture, Text, pack
from stream import BEGIN_ID, Stream, byte_lengths, encode, load_stream
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

SHAPE = Shape(
    vocabulary=8192,
    hidden=384,
    intermediate=1024,
    layers=6,
    heads=6,
    kv_heads=2,
    context=1024,
    rope_theta=10_000.0,
)
PROSE_SHARE, PROSE_WEIGHT = 0.16, 0.5
DOCUMENTS_SHARE, DOCUMENTS_WEIGHT = 0.02, 0.5
SHELL_SHARE, SQL_SHARE, TOOLS_SHARE, TALK_SHARE, STORIES_SHARE = 0.43, 0.40, 0.11, 0.02, 0.04
MEASURED = 128  # held-out conversations of each kind in the log
LEAST_MEMORY_GIB = 6


@dataclass(frozen=True, slots=True)
class Sources:
    """All data of the recipe, read."""

    novels: Novels
    documents: list[str]
    shell: Shell
    sql: Sql
    talk: Talk
    tools: ToolCalls


def read_sources(data: Path) -> Sources:
    """Raises MissingData naming the first thing that is not there."""
    return Sources(read_novels(data), read_documents(data), Shell(data), Sql(data), Talk(data), ToolCalls())


def tokenizer_texts(sources: Sources) -> list[str]:
    """What the vocabulary is made for: the jobs count more than their bytes would."""
    random = np.random.default_rng(0)
    drawn = [part.draw(random) for part in (sources.shell, sources.sql, sources.tools) for _ in range(12_000)]
    said = [str(message["content"]) for conversation in drawn for message in conversation.messages]
    commands = [f"{example.task}\n{example.command}" for example in sources.shell.examples]
    novels = sources.novels.plain + sources.novels.other[::12]
    return novels + said + commands + sources.documents[::4]


def prepare_tokenizer(sources: Sources, work: Path) -> Tokenizer:
    """Makes it once, then reads it from the work folder."""
    path = work / "tokenizer.json"
    if not path.is_file():
        make_tokenizer(tokenizer_texts(sources), SHAPE.vocabulary).save(str(path))
    return Tokenizer.from_file(str(path))


def make_mixture(sources: Sources, tokenizer: Tokenizer, work: Path) -> Mixture:
    """The mixture of `mini`; its encoded text is kept in the work folder."""
    parts = (
        (sources.shell, SHELL_SHARE),
        (sources.sql, SQL_SHARE),
        (sources.tools, TOOLS_SHARE),
        (sources.talk, TALK_SHARE),
        (Stories(sources.novels), STORIES_SHARE),
    )
    novels = sources.novels.plain * 2 + sources.novels.other
    texts = (
        Text(load_stream(work / "prose.npz", tokenizer, novels), PROSE_SHARE, PROSE_WEIGHT),
        Text(
            load_stream(work / "documents.npz", tokenizer, sources.documents),
            DOCUMENTS_SHARE,
            DOCUMENTS_WEIGHT,
        ),
    )
    return Mixture(Writer(tokenizer), parts, texts)


def weighted_loss(decoder: Decoder, states: Tensor, batch: Batch) -> Tensor:
    """Mean nats per learned token, by weight. Logits are taken only where something is learned."""
    targets, weights = batch.tokens[:, 1:], batch.weights[:, 1:]
    learned = weights > 0
    with torch.autocast(states.device.type, torch.bfloat16):
        logits = decoder.logits(states[learned])
    nats = F.cross_entropy(logits.float(), targets[learned], reduction="none")
    return (nats * weights[learned]).sum() / weights.sum()


def compiled_states(decoder: Decoder):
    """The decoder's hidden states of a batch, compiled where a C++ compiler is at hand."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    states = torch.compile(decoder.states, dynamic=False) if compiler else decoder.states

    def run(batch: Batch) -> Tensor:
        with torch.autocast(batch.tokens.device.type, torch.bfloat16):
            return states(batch.tokens[:, :-1], sees(batch.documents[:, :-1]))

    return run


class Measure:
    """What the log says of held-out data: each job's loss, how many answers are exactly right (each token the
    likeliest, so that greedy decoding gives this answer), bits per byte of the held-out novels."""

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer, sources: Sources, device: torch.device
    ) -> None:
        self._decoder, self._device = decoder, device
        writer = Writer(tokenizer)
        random = np.random.default_rng([0, 3])
        held_out: dict[str, list[Conversation]] = {
            "shell": [talk for _, talk in sources.shell.held_out(MEASURED, 0)],
            "everyday": [talk for _, talk in sources.shell.held_out(MEASURED, 0, everyday=True)],
            "sql": [talk for _, talk in sources.sql.held_out(MEASURED, 0)],
            "tools": [sources.tools.draw(random) for _ in range(MEASURED // 2)],
        }
        self._batches = {name: pack(writer, talks) for name, talks in held_out.items()}
        self._lengths = byte_lengths(tokenizer)
        text = [chapter for chapters in sources.novels.held_out.values() for chapter in chapters[:3]]
        self._novels: Stream = encode(tokenizer, text)

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        measures: dict[str, float] = {}
        for name, batch in self._batches.items():
            nats, right, count = 0.0, 0, 0
            for at in range(0, len(batch.tokens), 32):
                tokens, weights = batch.tokens[at : at + 32], batch.weights[at : at + 32, 1:]
                losses, hits = self._forward(tokens)
                nats += float((losses * weights).sum())
                count += int(weights.sum())
                right += int((hits | (weights == 0)).all(1).sum())
            measures |= {f"{name} loss": nats / count, f"{name} exact": right / len(batch.tokens)}
        return measures | {"novels bits/byte": self._bits_per_byte()}

    def _forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        tokens = tokens.to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16):
            logits = self._decoder(tokens[:, :-1]).float()
        losses = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        return losses.cpu(), (logits.argmax(-1) == tokens[:, 1:]).cpu()

    def _bits_per_byte(self) -> float:
        body = 511
        count = min(32, len(self._novels.tokens) // body)
        text = torch.from_numpy(self._novels.tokens[: count * body].astype(np.int64)).view(count, body)
        windows = torch.cat([torch.full((count, 1), BEGIN_ID), text], 1)
        nats = sum(float(self._forward(part)[0].sum()) for part in windows.split(8))
        return nats / math.log(2) / int(self._lengths[text.numpy()].sum())


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Trains the chat model that ships inside the package.")
    parser.add_argument("--data", type=Path, required=True, help="folder with text/, sql/ and intents/")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for checkpoints, tokenizer and curve"
    )
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--steps", type=int, default=36_000, help="steps before the decay; may be raised later"
    )
    parser.add_argument("--decay", type=int, default=6_000, help="steps of the decay, 0 for none yet")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0, help="processes that prepare batches (on a GPU: 8)")
    parser.add_argument(
        "--export", action="store_true", help="only write the model folder from the checkpoint"
    )
    return parser.parse_args()


def prepare(options: argparse.Namespace) -> tuple[Run, Tokenizer]:
    """Reads the data and builds the run. Raises MissingData."""
    free_gib = psutil.virtual_memory().available / 2**30
    if free_gib < LEAST_MEMORY_GIB:
        raise MissingData(f"{free_gib:.1f} GiB of memory are free, the recipe needs {LEAST_MEMORY_GIB}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sources = read_sources(options.data)
    options.work.mkdir(parents=True, exist_ok=True)
    tokenizer = prepare_tokenizer(sources, options.work)
    decoder = Decoder(SHAPE)
    decoder.initialise(torch.Generator().manual_seed(options.seed))
    decoder.to(device)
    plan = Plan(
        seed=options.seed,
        steps=options.steps,
        decay_steps=options.decay,
        tokens_per_step=4096,
        length=256,
        decay_length=SHAPE.context,
        matrix_rate=0.02,
        other_rate=3e-3,
        measure_every_steps=500,
    )
    states = compiled_states(decoder)
    run = Run(
        plan=plan,
        work=options.work,
        device=device,
        decoder=decoder,
        draw=make_mixture(sources, tokenizer, options.work).batch,
        loss=lambda batch: weighted_loss(decoder, states(batch), batch),
        measure=Measure(decoder, tokenizer, sources, device),
        workers=options.workers,
    )
    return run, tokenizer


def main() -> int:
    """Trains, exports."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    try:
        run, tokenizer = prepare(options)
        if options.export:
            load_checkpoint(run)
        else:
            train(run)
    except (MissingData, OtherRun) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write_chat_model(run.decoder.cpu(), tokenizer, options.out)
    print(f"{options.out}: step {run.step}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
