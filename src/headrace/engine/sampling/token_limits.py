"""Bad words, banned strings and sequence breakers of a request, in tokens of its model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TypeVar

from headrace.errors import InvalidRequest
from headrace.sampling.banned_strings import BannedTokens, SequenceBreakers, TokenBytes
from headrace.sampling.params import SamplingParams
from headrace.tokenization.token_bytes import Kind
from headrace.tokenization.tokenizer import Tokenizer

MAX_CACHED = 16

Key = TypeVar("Key")
Value = TypeVar("Value")


class TokenLimits:
    """Of one model. May be used from any thread."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._tokens: OrderedDict[frozenset[int], TokenBytes] = OrderedDict()  # by visible ids
        self._banned: OrderedDict[tuple[frozenset[int], tuple[str, ...]], BannedTokens] = OrderedDict()
        self._lock = threading.Lock()

    def bad_words(self, params: SamplingParams) -> list[list[int]]:
        """The tokens of each bad word, at the start of a text and after a space."""
        if not params.bad_words:
            return []
        texts = [before + word.lstrip(" ") for word in params.bad_words for before in ("", " ")]
        ids = {tuple(self._tokenizer.encode(text, add_special=False, parse_special=False)) for text in texts}
        return [list(word) for word in sorted(ids) if word]

    def breakers(self, params: SamplingParams, visible_token_ids: frozenset[int]) -> SequenceBreakers | None:
        """A new finder of sequence breakers, where dry is on."""
        if not params.dry_multiplier:
            return None
        tokens = self._token_bytes("dry_multiplier", visible_token_ids)
        return SequenceBreakers(tokens.tokens, params.dry_sequence_breakers)

    def banned(self, params: SamplingParams, visible_token_ids: frozenset[int]) -> BannedTokens | None:
        """The tokens that contain a banned string, and what finds those that complete one."""
        if not params.banned_strings:
            return None
        tokens = self._token_bytes("banned_strings", visible_token_ids)
        key = (visible_token_ids, params.banned_strings)
        with self._lock:
            if key not in self._banned:
                self._banned[key] = BannedTokens(tokens, params.banned_strings)
            return _latest(self._banned, key)

    def _token_bytes(self, param: str, visible_token_ids: frozenset[int]) -> TokenBytes:
        """What each token adds to an output's text: nothing, if it is special and not visible."""
        pieces = self._tokenizer.pieces
        if pieces.kind is Kind.WHOLE:
            raise InvalidRequest(
                f"this model's tokenizer has no bytes for single tokens, which {param} needs: leave it out",
                param=param,
            )
        with self._lock:
            if visible_token_ids not in self._tokens:
                tokens = pieces.bytes_of_all(self._vocabulary)
                for token in pieces.special_ids - visible_token_ids:
                    if token < len(tokens):
                        tokens[token] = b""
                self._tokens[visible_token_ids] = TokenBytes(tokens)
            return _latest(self._tokens, visible_token_ids)


def _latest(cache: OrderedDict[Key, Value], key: Key) -> Value:
    cache.move_to_end(key)
    while len(cache) > MAX_CACHED:
        cache.popitem(last=False)
    return cache[key]
