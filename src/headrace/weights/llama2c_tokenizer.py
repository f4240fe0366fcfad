"""The tokenizer beside a llama2.c model, as the keys that a GGUF file has for a SentencePiece vocabulary.

Format (tokenizer.py of github.com/karpathy/llama2.c): int32 length of the longest token; for each token
float32 score, int32 length, UTF-8 bytes, in which spaces stand for themselves and tokens 1 and 2 have line
breaks around.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from headrace.errors import CorruptFile, ModelNotFound
from headrace.weights.pread_file import PositionedFile

MAX_BYTES = 64 << 20
_UNKNOWN, _CONTROL, _BYTE, _NORMAL = 2, 3, 6, 1  # tokenizer.ggml.token_type


def tokenizer_metadata(model: Path, vocabulary: int) -> dict[str, object]:
    """From tok<vocabulary>.bin or tokenizer.bin beside the model. ModelNotFound where there is none,
    CorruptFile where it does not hold `vocabulary` tokens."""
    names = (f"tok{vocabulary}.bin", "tokenizer.bin")
    path = next((model.parent / name for name in names if (model.parent / name).is_file()), None)
    if path is None:
        raise ModelNotFound(
            f"there is no tokenizer beside {model.name}: put {' or '.join(names)} into the same folder"
        )
    scores, tokens = _read(path, vocabulary)
    tokens[1:3] = ["<s>", "</s>"]
    types = [_type(token_id, token) for token_id, token in enumerate(tokens)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }


def _read(path: Path, count: int) -> tuple[list[float], list[str]]:
    with PositionedFile(path) as file:
        if file.size > MAX_BYTES:
            raise CorruptFile(f"{path.name} has {file.size:,} bytes, a tokenizer at most {MAX_BYTES:,}")
        data = bytearray(file.size)
        file.read_into(0, memoryview(data), "the vocabulary")
    scores: list[float] = []
    tokens: list[str] = []
    position = 4
    try:
        for _ in range(count):
            score, length = struct.unpack_from("<fi", data, position)
            position += 8 + length
            if length < 0 or position > len(data):
                raise CorruptFile(
                    f"{path.name}: token {len(tokens):,} has {length:,} bytes and ends at byte {position:,} "
                    f"of {len(data):,}: fetch the file again"
                )
            scores.append(score)
            tokens.append(data[position - length : position].decode().replace(" ", "▁"))
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptFile(
            f"{path.name} is damaged at token {len(tokens):,} of {count:,} (byte {position:,}): {error}"
        ) from None
    if position != len(data):
        raise CorruptFile(
            f"{path.name} has {len(data) - position:,} bytes after {count:,} tokens, as many as the model "
            "has: it is another model's tokenizer"
        )
    return scores, tokens


def _type(token_id: int, token: str) -> int:
    if token_id < 3:
        return _UNKNOWN if token_id == 0 else _CONTROL
    return _BYTE if len(token) == 6 and token.startswith("<0x") and token.endswith(">") else _NORMAL
