"""Reads the file that llama.cpp's `llama-perplexity --save-all-logits` (before: --kl-divergence-base) writes.

Layout (tools/perplexity/perplexity.cpp): "_logits_", then int32 context n, vocabulary V, chunks N, the tokens
[N, n], and for each chunk and each position from n / 2 to n - 2 a scale and a minimum (float32), and V
unsigned 16-bit codes, padded to an even number: log probability = scale * code + minimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace.bench.quality.next_token_model import ROWS, Logs
from headrace.bench.quality.windows import Windows
from headrace.errors import CorruptFile
from headrace.tokenization.tokenizer import Tokenizer

MAGIC = b"_logits_"
_HEADER_BYTES = 20
_EXTRA = 4  # codes' places that the scale and the minimum take


class LlamaCppBase:
    """The reference's distributions from such a file. CorruptFile where it is none or is cut short."""

    def __init__(self, path: Path, *, most: int) -> None:
        self.name, self._path = path.name, path
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
            if len(header) < _HEADER_BYTES or not header.startswith(MAGIC):
                raise CorruptFile(f"{path} is not a file of llama.cpp's log probabilities: make one anew")
            context, vocabulary, chunks = np.frombuffer(header, "<i4", 3, len(MAGIC)).tolist()
            self._check(context, vocabulary, chunks)
            count = min(most, chunks)
            tokens = np.frombuffer(file.read(4 * count * context), "<i4").reshape(count, context)
        self.vocabulary: int = vocabulary
        first = context // 2
        self.windows = Windows(tokens.astype(np.int32), first, f"{path.name} (llama.cpp)")
        self._row = 2 * ((vocabulary + 1) // 2) + _EXTRA
        self._start = _HEADER_BYTES + 4 * chunks * context

    def _check(self, context: int, vocabulary: int, chunks: int) -> None:
        if context < 4 or vocabulary < 2 or chunks < 1:
            raise CorruptFile(
                f"{self._path} says {chunks} chunks of {context} tokens over a vocabulary of {vocabulary}:"
                " it is damaged, make it anew"
            )
        scored = context - 1 - context // 2
        row_bytes = 2 * (2 * ((vocabulary + 1) // 2) + _EXTRA)
        needed = _HEADER_BYTES + 4 * chunks * context + chunks * scored * row_bytes
        found = self._path.stat().st_size
        if found < needed:
            raise CorruptFile(
                f"{self._path} has {found:,} bytes, its header needs {needed:,}: it was cut short, make it"
                " anew"
            )

    def opened(self, tokenizer: Tokenizer) -> Windows:
        """The windows as the model reads them: llama.cpp replaces the first token of each by that of a begin,
        where the vocabulary has one that texts begin with."""
        tokens = self.windows.tokens.copy()
        if tokenizer.bos_id is not None and tokenizer.encode("a")[:1] == [tokenizer.bos_id]:
            tokens[:, 0] = tokenizer.bos_id
        return Windows(tokens, self.windows.first, self.windows.source)

    def log_probs(self, index: int) -> Iterator[Logs]:
        """Log probabilities [n, V] of window `index`, in blocks of up to ROWS positions."""
        scored = self.windows.scored
        with self._path.open("rb") as file:
            file.seek(self._start + index * scored * self._row * 2)
            for start in range(0, scored, ROWS):
                count = min(ROWS, scored - start)
                codes = np.fromfile(file, "<u2", count * self._row).reshape(count, self._row)
                scale, low = np.ascontiguousarray(codes[:, :_EXTRA]).view("<f4").astype(np.float64).T
                yield scale[:, None] * codes[:, _EXTRA : _EXTRA + self.vocabulary] + low[:, None]
