"""What one token adds to a text: bytes per id, read off the tokenizer's decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from itertools import takewhile
from typing import Any

import tokenizers
from msgspec import Struct

from headrace.tokenization.guard import decoded

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Kind(Enum):
    """How a decoder turns a list of tokens into text."""

    BYTE_LEVEL = "bytes of all tokens in a row, decoded at the end"
    BYTE_FALLBACK = "text per token, bytes for <0xNN> tokens, leading characters stripped"
    TOKENWISE = "text per token; the first one may differ"
    WHOLE = "only the whole list has a meaning"


class TokenPiece(Struct, frozen=True):
    """A token's share of the text. `first` is its text where no token stands before it; `is_byte` marks
    one raw byte of a character that other tokens complete."""

    text: str
    first: str
    raw: bytes
    is_byte: bool


class TokenPieces:
    """Piece of every id of a tokenizer, found on first use (a model touches few of its ids)."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        kind: Kind,
        piece: Callable[[str], TokenPiece],
        strip: tuple[str, int],
    ) -> None:
        self.kind = kind
        self.strip = strip  # (character, how many at most) taken off the start of the whole text
        self._backend = backend
        self._piece = piece
        self.special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self._known: dict[tuple[int, bool], TokenPiece | None] = {}

    def of(self, token_id: int, *, skip_special: bool) -> TokenPiece | None:
        """Piece of an id; None for an id that adds nothing at all (no such token, or a skipped special)."""
        key = (token_id, skip_special)
        try:
            return self._known[key]
        except KeyError:
            skipped = skip_special and token_id in self.special_ids
            token = None if skipped else self.token_of(token_id)
            piece = self._known[key] = None if token is None else self._piece(token)
            return piece

    def bytes_of(self, token_id: int, *, skip_special: bool) -> bytes:
        """Raw bytes of an id, empty where it adds nothing."""
        piece = self.of(token_id, skip_special=skip_special)
        return b"" if piece is None else piece.raw

    def bytes_of_all(self, count: int) -> list[bytes]:
        """Raw bytes of the ids below `count`, special ones too; not kept, unlike those of `bytes_of`."""
        tokens = map(self.token_of, range(count))
        return [b"" if token is None else self._piece(token).raw for token in tokens]

    def token_of(self, token_id: int) -> str | None:
        """Spelling of an id in the vocabulary; None where there is none."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None


def pieces_of(backend: tokenizers.Tokenizer) -> TokenPieces:
    """Choose how to read a tokenizer's decoder.

    The decoders are those of the `tokenizers` package: a list of stages that map a list of tokens to a
    list of texts, which is then joined. What is recognized here is read token by token; anything else
    is Kind.WHOLE and asks the library.
    """
    decoder: Any = backend.decoder
    if decoder is None:  # the library joins the tokens with spaces
        return TokenPieces(backend, Kind.TOKENWISE, lambda token: _piece(" " + token, token), ("", 0))
    stages = _stages(json.loads(decoder.__getstate__()))
    types = [stage["type"] for stage in stages]
    if types == ["ByteLevel"]:
        return TokenPieces(backend, Kind.BYTE_LEVEL, _byte_level_piece, ("", 0))
    replaces = list(takewhile(lambda pair: pair is not None, map(_plain_replace, stages)))
    rest = types[len(replaces) :]
    if rest[:1] == ["ByteFallback"]:
        read = partial(_fallback_piece, replaces=[pair for pair in replaces if pair is not None])
        if rest[1:] in ([], ["Fuse"]):
            return TokenPieces(backend, Kind.BYTE_FALLBACK, read, ("", 0))
        if rest[1:] == ["Fuse", "Strip"] and stages[-1]["stop"] == 0:
            return TokenPieces(
                backend, Kind.BYTE_FALLBACK, read, (stages[-1]["content"], stages[-1]["start"])
            )
    tokenwise = types[:-1] if types[-1:] == ["Fuse"] else types
    kind = Kind.TOKENWISE if set(tokenwise) <= {"Metaspace", "WordPiece", "Replace"} else Kind.WHOLE
    return TokenPieces(backend, kind, partial(_asked_piece, decoder), ("", 0))


def _stages(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """Flatten nested sequences of decoders."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [stage for inner in decoder["decoders"] for stage in _stages(inner)]


def _plain_replace(stage: dict[str, Any]) -> tuple[str, str] | None:
    """What a stage replaces by what; None unless it replaces one string."""
    pattern = stage["pattern"].get("String") if stage["type"] == "Replace" else None
    return None if pattern is None else (pattern, stage["content"])


def _piece(text: str, first: str) -> TokenPiece:
    return TokenPiece(text=text, first=first, raw=text.encode(), is_byte=False)


def _byte_alphabet() -> dict[str, int]:
    """The 256 characters that stand for bytes in byte-level BPE: printable Latin-1 stands for itself, the
    others are moved to U+0100 and on, in order (the table of the GPT-2 tokenizer)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(moved)})
    return alphabet


_ALPHABET = _byte_alphabet()


def _byte_level_piece(token: str) -> TokenPiece:
    # A token with a character outside the alphabet (an added token with a space) is its own UTF-8.
    try:
        raw = bytes(_ALPHABET[character] for character in token)
    except KeyError:
        raw = token.encode()
    return TokenPiece(text="", first="", raw=raw, is_byte=False)


def _fallback_piece(token: str, replaces: list[tuple[str, str]]) -> TokenPiece:
    for old, new in replaces:
        token = token.replace(old, new)
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte is None:
        return _piece(token, token)
    return TokenPiece(text="", first="", raw=bytes([int(byte[1], 16)]), is_byte=True)


def _asked_piece(decoder: Any, token: str) -> TokenPiece:
    before, after, alone = (
        decoded(lambda tokens=tokens: decoder.decode(tokens)) for tokens in (["a"], ["a", token], [token])
    )
    return _piece(after[len(before) :], alone)
