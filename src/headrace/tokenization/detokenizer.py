"""Ids to text as they arrive: only what no later token can change, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from headrace.tokenization.token_bytes import Kind
from headrace.tokenization.tokenizer import Tokenizer

_WINDOW_TOKENS = 8  # a character has at most four bytes, so a longer doubt is not about a character


class Detokenizer:
    """Incremental decoding of one sequence.

    The texts of all pushes and of `flush` together equal `tokenizer.decode(all ids)`; with `skip_special`,
    special tokens other than `visible_token_ids` are no part of it. `is_continuation` says that the sequence
    goes on from an earlier text (a completion of a prompt): then the first token keeps the space that a
    decoder takes off the start of a text. Bytes that a prompt left unfinished belong to the prompt: what
    completes them is U+FFFD here, as when the generated ids are decoded alone.

    A run of `<0xNN>` tokens (SentencePiece byte fallback) is held until it ends or is known to be wrong:
    the reference decoder replaces the whole run when any byte of it is wrong.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        visible_token_ids: frozenset[int] = frozenset(),
        is_continuation: bool = False,
    ) -> None:
        pieces = tokenizer.pieces
        skipped = pieces.special_ids if skip_special else frozenset[int]()
        if visible_token_ids:
            skipped -= visible_token_ids
        self._state: _ByteLevel | _ByteFallback | _Tokenwise | _Whole
        if pieces.kind is Kind.BYTE_LEVEL:
            self._state = _ByteLevel(tokenizer, skipped)
        elif pieces.kind is Kind.BYTE_FALLBACK:
            self._state = _ByteFallback(tokenizer, skipped, is_continuation)
        elif pieces.kind is Kind.TOKENWISE:
            self._state = _Tokenwise(tokenizer, skipped, is_continuation)
        else:
            self._state = _Whole(tokenizer, skipped)
        self.push: Callable[[int], str] = self._state.push
        self.flush: Callable[[], str] = self._state.flush


class _ByteLevel:
    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._pieces = tokenizer.pieces
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Text newly certain after this id."""
        piece = self._pieces.of(token_id, skip_special=token_id in self._skipped)
        return "" if piece is None else self._decoder.decode(piece.raw)

    def flush(self) -> str:
        """The rest; an unfinished character is one U+FFFD."""
        return self._decoder.decode(b"", True)


class _ByteFallback:
    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int], is_continuation: bool) -> None:
        self._pieces = tokenizer.pieces
        self._skipped = skipped
        self._strip_character, strip_count = tokenizer.pieces.strip
        self._to_strip = 0 if is_continuation else strip_count
        self._run = bytearray()
        self._run_text: list[str] = []
        self._run_decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._run_is_wrong = False

    def push(self, token_id: int) -> str:
        """Text newly certain after this id."""
        piece = self._pieces.of(token_id, skip_special=token_id in self._skipped)
        if piece is None:
            return ""
        if piece.is_byte:
            text = self._push_byte(piece.raw)
        else:
            text = self._end_run() + piece.text if self._run or self._run_is_wrong else piece.text
        return self._stripped(text) if self._to_strip else text

    def flush(self) -> str:
        """The rest; bytes of an unfinished run are U+FFFD each."""
        return self._stripped(self._end_run())

    def _push_byte(self, byte: bytes) -> str:
        if self._run_is_wrong:
            return "�"
        self._run += byte
        try:
            self._run_text.append(self._run_decoder.decode(byte))
        except UnicodeDecodeError:
            self._run_is_wrong = True
            return "�" * len(self._run)
        return ""

    def _end_run(self) -> str:
        text = "" if self._run_is_wrong else "".join(self._run_text)
        if self._run_decoder.getstate()[0] and not self._run_is_wrong:
            text = "�" * len(self._run)
        self._run.clear()
        self._run_text.clear()
        self._run_decoder.reset()
        self._run_is_wrong = False
        return text

    def _stripped(self, text: str) -> str:
        """Take what is left to strip off the start of the whole text."""
        while text and self._to_strip:
            if text[0] != self._strip_character:
                self._to_strip = 0
                break
            text = text[1:]
            self._to_strip -= 1
        return text


class _Tokenwise:
    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int], is_continuation: bool) -> None:
        self._pieces = tokenizer.pieces
        self._skipped = skipped
        self._is_first = not is_continuation

    def push(self, token_id: int) -> str:
        """Text newly certain after this id."""
        piece = self._pieces.of(token_id, skip_special=token_id in self._skipped)
        if piece is None:
            return ""
        if self._is_first:
            self._is_first = False
            return piece.first
        return piece.text

    def flush(self) -> str:
        """Nothing is ever held back here."""
        return ""


class _Whole:
    """For decoders of no known shape: decode a short window twice and take the difference.

    The window begins with the tokens of the last text that came out, so that what a decoder does at the
    start of a list cancels; it is exact for every decoder that looks no further than one window back.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._shown: list[int] = []
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """Text newly certain after this id."""
        if token_id in self._skipped:
            return ""
        self._held.append(token_id)
        text = self._difference()
        doubtful = not text or text.endswith("�")
        if doubtful and len(self._held) < _WINDOW_TOKENS:
            return ""
        self._shown = self._held if text else (self._shown + self._held)[-_WINDOW_TOKENS:]
        self._held = []
        return text

    def flush(self) -> str:
        """The rest."""
        text = self._difference()
        self._shown, self._held = self._held, []
        return text

    def _difference(self) -> str:
        before = self._tokenizer.decode(self._shown, skip_special=False)
        after = self._tokenizer.decode(self._shown + self._held, skip_special=False)
        return after[len(before) :]
