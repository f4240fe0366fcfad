"""Tries a tokenizer.json whose parts are not known to be bounded: in a process of its own, under limits.

`python -m headrace.tokenization.probe FD` is that process.
"""

from __future__ import annotations

import os
import sys

import tokenizers

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.isolation.child import IsolatedProcess, LimitExceeded, WorkFailed
from headrace.isolation.fork_server import Ask, Work, serve
from headrace.isolation.limits import ProcessLimits
from headrace.tokenization.pipeline import (
    MAX_ADDED_TOKENS,
    MAX_GROWTH,
    MAX_TEXT,
    added_tokens,
    is_bounded,
    longest_text,
    patterns,
    read_pipeline,
)
from headrace.tokenization.token_bytes import pieces_of

MAX_CPU_S = 2.0
MAX_MEMORY_BYTES = 256 * 2**20
CPU_S_PER_BYTE = 1e-7  # of the file: reading 10 MB takes half a second
MEMORY_PER_BYTE = 32
PROBED_IDS = 512
_PART = 16 * 1024  # of all characters
_TEXTS = (
    *("", " ", "a", "\n", "\x00", "\u00e9", "\u4e2d\u6587", "\U0001f600", "e\u0301", "a b  c\n\n\td"),
    *("a" * 4000, " " * 4000, "\n" * 1000, "1" * 4000, "ab " * 1500, "\U0001f600" * 1000, "a" * 2000 + "!"),
    *(
        "\u00e9" * 2000,
        ("The quick brown fox, 1,234.5 times; it's 'fine'.\n" * 80),
        "'" * 2000,
        "\u0301" * 500,
    ),
)


def check_tokenizer(data: bytes, name: str) -> bool:
    """Refuse a tokenizer.json that grows texts or takes longer than it may: UnsupportedModel or CorruptFile.

    True where its parts say that it is bounded, for any text; otherwise it was only tried. `name` is what
    errors call the file.
    """
    try:
        pipeline = read_pipeline(data)
    except ValueError as error:
        raise CorruptFile(f"{name} cannot be read; fetch the file again ({str(error)[:200]})") from None
    if is_bounded(pipeline):
        return True
    if (longest := longest_text(pipeline)) > MAX_TEXT:
        raise UnsupportedModel(
            f"{name} has a part that adds {longest:,} characters to a text, at most {MAX_TEXT:,} are "
            "allowed: correct it, or use another checkpoint"
        )
    if (added := added_tokens(pipeline)) > MAX_ADDED_TOKENS:
        raise UnsupportedModel(
            f"{name} adds {added:,} tokens to every text, at most {MAX_ADDED_TOKENS:,} are allowed: correct "
            "its post_processor, or use another checkpoint"
        )
    _probe(data, name)
    return False


def _probe(data: bytes, name: str) -> None:
    limits = ProcessLimits(
        MAX_CPU_S + CPU_S_PER_BYTE * len(data), MAX_MEMORY_BYTES + MEMORY_PER_BYTE * len(data)
    )
    process = IsolatedProcess("headrace.tokenization.probe")
    try:
        outcome = process.call(data, limits).decode()
    except LimitExceeded as error:
        raise UnsupportedModel(
            f"{name} needs more than {error.what} for short texts, at most {limits.cpu_s:.1f} s and "
            f"{limits.memory_bytes >> 20} MB are allowed: correct its normalizer, pre_tokenizer or decoder, "
            "or use another checkpoint"
        ) from None
    except WorkFailed as error:
        raise UnsupportedModel(
            f"{name} was tried on short texts, which failed ({error}): use another checkpoint"
        ) from None
    finally:
        process.close()
    if outcome:
        raise UnsupportedModel(f"{name} {outcome}: correct it, or use another checkpoint")


def prepare(setup: bytes) -> Work:
    """Nothing is read before the limits are set."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads would take memory
    return _tried


def _tried(data: bytes, ask: Ask) -> bytes:
    """Why a tokenizer.json is refused; empty where it is not."""
    try:
        backend = tokenizers.Tokenizer.from_str(data.decode())
        return _cause(backend, patterns(read_pipeline(data))).encode()
    except MemoryError:
        raise
    except BaseException as error:  # a panic of the library is no Exception
        return f"fails on short texts ({str(error)[:200]})".encode()


def _cause(backend: tokenizers.Tokenizer, looked_for: list[str]) -> str:
    backend.no_truncation()
    backend.no_padding()
    every = "".join(chr(code) for code in range(1, sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    texts = [*_TEXTS, *looked_for, "".join(looked_for), *(text * 3 for text in looked_for)]
    if backend.normalizer is not None:
        parts = (every[first : first + _PART] for first in range(0, len(every), _PART))
        for text in (*texts, *parts):
            grown = len(backend.normalizer.normalize_str(text))
            if grown > MAX_GROWTH * len(text) + MAX_TEXT:
                return (
                    f"makes {grown:,} characters of {len(text):,}, at most {MAX_GROWTH} of each are allowed"
                )
    for text in texts:
        for special in (False, True):
            [encoding] = backend.encode_batch_fast([text], add_special_tokens=special)
            most = MAX_GROWTH * len(text.encode()) + MAX_ADDED_TOKENS
            if len(encoding.ids) > most:
                return f"makes {len(encoding.ids):,} tokens of {len(text):,} characters"
            backend.decode(encoding.ids[:PROBED_IDS], skip_special_tokens=False)
    return _decoding(backend)


def _decoding(backend: tokenizers.Tokenizer) -> str:
    """Every token alone, and some together."""
    pieces = pieces_of(backend)
    count = backend.get_vocab_size(with_added_tokens=True)
    alone = backend.decode_batch([[token] for token in range(count)], skip_special_tokens=False)
    for token, text in enumerate(alone):
        if len(text) > MAX_TEXT + MAX_GROWTH * len(backend.id_to_token(token) or ""):
            return f"makes {len(text):,} characters of the token {token}"
    some = [*range(min(count, PROBED_IDS)), *range(0, count, max(1, count // PROBED_IDS))]
    for token in some:
        pieces.bytes_of(token, skip_special=False)
    for ids in ([], some, [0, 0], list(reversed(some))):
        backend.decode(ids, skip_special_tokens=False)
    return ""


if __name__ == "__main__":
    serve(prepare)
