"""Metrics of a run on held-out data, for the log."""

import math

import numpy as np
import torch
from decoder import Decoder
from dialogue import Conversation, Writer
from mixture import pack
from sources import Sources
from stream import BEGIN_ID, Stream, byte_lengths, encode
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

MEASURED = 128  # held-out conversations of each kind
NOVEL_WINDOWS, NOVEL_WINDOW = 32, 512


class Measure:
    """Metrics on held-out data: each task's loss, how many answers are exactly right (every token is the
    likeliest, so greedy decoding gives this answer), bits per byte of the held-out novels.
    """

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer, sources: Sources, device: torch.device
    ) -> None:
        self._decoder, self._device = decoder, device
        writer = Writer(tokenizer)
        random = np.random.default_rng([0, 3])
        held_out: dict[str, list[Conversation]] = {
            "shell": [talk for _, talk in sources.shell.held_out(MEASURED, 0)],
            "everyday": [talk for _, talk in sources.shell.held_out(MEASURED, 0, everyday=True)],
            "own tasks": sources.everyday.held_out()[:MEASURED],
            "sql": [talk for _, talk in sources.sql.held_out(MEASURED, 0)],
            "tools": [sources.tools.draw(random) for _ in range(MEASURED // 2)],
            "edits": [sources.held_out_edits().draw(random) for _ in range(MEASURED // 2)],
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
        windows = text_windows(self._novels, NOVEL_WINDOW)[:NOVEL_WINDOWS]
        nats = sum(float(self._forward(part)[0].sum()) for part in windows.split(8))
        return nats / math.log(2) / int(self._lengths[windows[:, 1:].numpy()].sum())


def text_windows(stream: Stream, length: int) -> Tensor:
    """The text in windows [count, length] that each begin with `<s>`; the remainder is dropped."""
    body = length - 1
    count = len(stream.tokens) // body
    text = torch.from_numpy(stream.tokens[: count * body].astype(np.int64)).view(count, body)
    return torch.cat([torch.full((count, 1), BEGIN_ID), text], 1)
