"""Text to tokens: trains the byte-level BPE tokenizer, and draws training windows from encoded chapters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BEGIN, END = "<s>", "</s>"
BEGIN_ID, END_ID = 0, 1

# Contractions, words, single digits, punctuation, newlines, other white space; a word includes a
# leading space.
PIECES = r"'(?:s|t|re|ve|m|ll|d)\b| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*\n+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str], vocabulary: int, marks: Sequence[str] = ()) -> Tokenizer:
    """A byte-level BPE tokenizer of exactly `vocabulary` entries; encoding prepends `<s>`.

    `marks` are special tokens that follow `<s>` and `</s>`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BEGIN, END, *marks],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, BEGIN_ID)]
    )
    return tokenizer


@dataclass(frozen=True, slots=True)
class Stream:
    """Concatenated chapters, each terminated by `</s>`; `starts` are the offsets of paragraphs."""

    tokens: np.ndarray
    starts: np.ndarray

    def windows(self, count: int, length: int, random: np.random.Generator) -> torch.Tensor:
        """Tokens [count, length]: `<s>`, then text from a random paragraph on, like a prompt."""
        usable = self.starts[self.starts < len(self.tokens) - length]
        begins = random.choice(usable, size=count)
        body = self.tokens[begins[:, None] + np.arange(length - 1)]
        return torch.from_numpy(
            np.concatenate([np.full((count, 1), BEGIN_ID), body], axis=1).astype(np.int64)
        )


def encode(tokenizer: Tokenizer, chapters: list[str]) -> Stream:
    """Encodes chapters in order."""
    paragraph_end = tokenizer.token_to_id("ĊĊ")  # two newlines in the byte-level alphabet
    encoded = [
        [*encoding.ids, END_ID] for encoding in tokenizer.encode_batch(chapters, add_special_tokens=False)
    ]
    tokens = np.concatenate([np.asarray(ids, np.uint16) for ids in encoded])
    after = np.flatnonzero((tokens == paragraph_end) | (tokens == END_ID)) + 1
    return Stream(tokens, np.concatenate([[0], after[after < len(tokens)]]))


def load_stream(path: Path, tokenizer: Tokenizer, chapters: list[str]) -> Stream:
    """Encodes once and caches the result at `path`, for this tokenizer and these chapters."""
    if not path.is_file():
        stream = encode(tokenizer, chapters)
        np.savez(path, tokens=stream.tokens, starts=stream.starts)
    with np.load(path) as arrays:
        return Stream(arrays["tokens"], arrays["starts"])


def byte_lengths(tokenizer: Tokenizer) -> np.ndarray:
    """Number of text bytes of each token; the byte-level alphabet has one character per byte."""
    vocabulary = tokenizer.get_vocab()
    lengths = np.zeros(len(vocabulary), np.int64)
    for token, token_id in vocabulary.items():
        lengths[token_id] = len(token)
    lengths[[BEGIN_ID, END_ID]] = 0
    return lengths
