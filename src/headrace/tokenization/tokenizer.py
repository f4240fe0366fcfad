"""Bytes ⇄ ids: a checkpoint folder's tokenizer.json, read by the `tokenizers` package."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

# One text at a time is encoded, on the thread that asks: the library's own pool would only compete
# with the engine's. Read when the library first encodes, so it must be set before; a user's setting stays.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tokenizers
from msgspec import Struct
from tokenizers.pre_tokenizers import PreTokenizer

from headrace.errors import CorruptFile, InvalidRequest, UnsupportedModel
from headrace.tokenization.guard import decoded, guarded
from headrace.tokenization.probe import check_tokenizer
from headrace.tokenization.token_bytes import TokenPieces, pieces_of
from headrace.tokenization.token_config import read_object, token_ids, token_text


class MarkedTokens(Struct, frozen=True):
    """Tokens of a text with their characters [start, end), and the special ones before and after them.

    `pieces` are the tokens as the vocabulary spells them, where it marks those inside of words; empty where
    it marks none.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    ids: tuple[int, ...]
    places: tuple[tuple[int, int], ...]
    pieces: tuple[str, ...]

    def continues(self, text: str, number: int) -> bool:
        """Whether a token continues the word of the one before it, as the token-classification pipeline of
        `transformers` tells it."""
        start, end = self.places[number]
        if self.pieces:
            return len(self.pieces[number]) != end - start
        return start > 0 and " " not in text[start - 1 : start + 1]


class Tokenizer:
    """Text ⇄ ids of one model. Safe to share between threads.

    `bos_id` is None for a model without a beginning-of-sequence token; `eos_ids` holds every id that any
    of the checkpoint's files names as an end of sequence. `is_bounded`: a short text takes little time.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        eos_ids: frozenset[int] = frozenset(),
        add_bos: bool = False,
        is_bounded: bool = True,
    ) -> None:
        # A tokenizer.json may ask to cut or pad every text; a prompt is never cut in silence.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._lock = threading.Lock()
        self.bos_id = bos_id
        self.eos_ids = eos_ids
        self.is_bounded = is_bounded
        self.vocabulary_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.normalizes = backend.normalizer is not None
        adds_none = backend.num_special_tokens_to_add(False) == 0
        self._prefix = [bos_id] if add_bos and adds_none and bos_id is not None else []
        self.pieces: TokenPieces = pieces_of(backend)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of `text`.

        `add_special` adds what the checkpoint's post-processor adds (usually BOS). With `parse_special`
        the spelling of a special token inside `text` becomes that token, as chat templates need; without,
        it is plain text, so that what a user typed cannot pose as a template's marker.
        Raises InvalidRequest for text that is not valid Unicode (lone surrogates).
        """
        [encoding] = self._encodings(
            text,
            parse_special,
            lambda: self._backend.encode_batch_fast([text], add_special_tokens=add_special),
        )
        ids = encoding.ids
        return self._prefix + ids if add_special else ids

    def encode_with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of `text` and of each its characters [start, end). Nothing is added, and the spelling of a
        special token is plain text. Raises InvalidRequest as `encode`."""
        [encoding] = self._encodings(
            text, False, lambda: self._backend.encode_batch([text], add_special_tokens=False)
        )
        return encoding.ids, encoding.offsets

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Ids of each word, as a tokenizer encodes a text that was split before. Nothing is added, and the
        spelling of a special token is plain text. Raises InvalidRequest as `encode`."""
        [encoding] = self._encodings(
            "".join(words),
            False,
            lambda: self._backend.encode_batch([list(words)], is_pretokenized=True, add_special_tokens=False),
        )
        found: list[list[int]] = [[] for _ in words]
        for token_id, word in zip(encoding.ids, encoding.word_ids, strict=True):
            if word is not None:
                found[word].append(token_id)
        return found

    def encode_marked(self, text: str) -> MarkedTokens:
        """The tokens of `text` apart from what the post-processor adds around them. The spelling of a special
        token is plain text. Raises InvalidRequest as `encode`."""
        [encoding] = self._encodings(text, False, lambda: self._backend.encode_batch([text]))
        special = [bool(flag) for flag in encoding.special_tokens_mask]
        own = [number for number, flag in enumerate(special) if not flag]
        first, end = (own[0], own[-1] + 1) if own else (_leading(special), _leading(special))
        ids = encoding.ids
        return MarkedTokens(
            before=(*self._prefix, *ids[:first]),
            after=tuple(ids[end:]),
            ids=tuple(ids[first:end]),
            places=tuple(encoding.offsets[first:end]),
            pieces=self._word_pieces(encoding.tokens[first:end], encoding.offsets[first:end], ids[first:end]),
        )

    def _word_pieces(
        self, pieces: Sequence[str], places: Sequence[tuple[int, int]], ids: Sequence[int]
    ) -> tuple[str, ...]:
        """Where the vocabulary marks tokens inside of words; an unknown token is a word."""
        model = self._backend.model
        if not getattr(model, "continuing_subword_prefix", None):
            return ()
        unknown = self._backend.token_to_id(getattr(model, "unk_token", None) or "")
        return tuple(
            " " * (end - start) if number == unknown else piece
            for piece, (start, end), number in zip(pieces, places, ids, strict=True)
        )

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int]:
        """Ids of a pair of texts with what the post-processor adds, and the index of the first token that
        is of the second text's type (its token type is 1). The spelling of a special token is plain text.

        Without such a type the index is the count of ids: the two are told apart by their separator alone.
        Raises InvalidRequest as `encode`.
        """
        [encoding] = self._encodings(
            first + second, False, lambda: self._backend.encode_batch([(first, second)])
        )
        types = encoding.type_ids
        return encoding.ids, types.index(1) if 1 in types else len(types)

    def _encodings(
        self, text: str, parse_special: bool, encode: Callable[[], list[tokenizers.Encoding]]
    ) -> list[tokenizers.Encoding]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the text is not valid Unicode: lone surrogate at character {error.start}; "
                "replace it or encode the character whole"
            ) from None
        # `encode_special_tokens` is state of the backend, so one encoding at a time. The batch calls are the
        # ones that release the interpreter lock.
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            return guarded(
                encode, InvalidRequest, f"the tokenizer cannot encode this text of {len(text):,} characters"
            )

    def encode_prompt(self, text: str, *, parse_special: bool = True) -> list[int]:
        """As `encode`, but never empty: an empty text is BOS alone.

        Raises InvalidRequest when the text yields no token and the model has no BOS.
        """
        ids = self.encode(text, parse_special=parse_special)
        if ids:
            return ids
        if self.bos_id is None:
            raise InvalidRequest(
                "the prompt has no tokens and this model has no beginning-of-sequence token: "
                "give at least one character",
                param="prompt",
            )
        return [self.bos_id]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD, ids without a token are nothing."""
        # By id, not by the library's own flag: that one misses special tokens whose spelling the normalizer
        # changes (the Llama 1 tokenizer.json).
        skipped = self.pieces.special_ids if skip_special else frozenset[int]()
        kept = [token_id for token_id in ids if token_id not in skipped]
        return decoded(lambda: self._backend.decode(kept, skip_special_tokens=False))

    def id_of(self, token: str) -> int | None:
        """Id of the token spelled exactly so in the vocabulary, None where there is none."""
        return self._backend.token_to_id(token)

    def twin(self) -> Tokenizer:
        """A tokenizer that encodes the same and does not wait for this one while it encodes."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        return Tokenizer(backend, bos_id=self.bos_id, eos_ids=self.eos_ids)

    @property
    def kind(self) -> str:
        """What builds tokens from pieces, as the library calls it: BPE, Unigram, WordPiece, WordLevel."""
        return type(self._backend.model).__name__

    @property
    def pre_tokenizer(self) -> PreTokenizer | None:
        """How the backend cuts texts before its model sees them."""
        return self._backend.pre_tokenizer

    def to_json(self) -> str:
        """The content of a tokenizer.json."""
        return self._backend.to_str()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for inside a text (special tokens: their spelling; unknown ids: none)."""
        return self.pieces.bytes_of(token_id, skip_special=False)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Tokenizer of a checkpoint folder.

    BOS and EOS come from tokenizer_config.json, special_tokens_map.json, generation_config.json and
    config.json, where they exist. Raises UnsupportedModel without a tokenizer.json or for one that takes too
    much time or memory (see `check_tokenizer`), CorruptFile where one of the files contradicts itself.
    """
    backend, is_bounded = _load_backend(folder / "tokenizer.json")
    special = read_object(folder / "special_tokens_map.json")
    config = read_object(folder / "tokenizer_config.json")
    model_configs = [read_object(folder / name) for name in ("generation_config.json", "config.json")]

    def named(key: str) -> int | None:
        token = token_text(config.get(key, special.get(key)))
        return None if token is None else backend.token_to_id(token)

    eos_ids = {token_id for token_id in [named("eos_token")] if token_id is not None}
    for model_config in model_configs:
        eos_ids |= set(token_ids(model_config, "eos_token_id", folder.name))
    bos_ids = [token_id for token_id in [named("bos_token")] if token_id is not None]
    for model_config in model_configs:
        bos_ids += token_ids(model_config, "bos_token_id", folder.name)
    return Tokenizer(
        backend,
        bos_id=bos_ids[0] if bos_ids else None,
        eos_ids=frozenset(eos_ids),
        add_bos=config.get("add_bos_token") is True,
        is_bounded=is_bounded,
    )


def _load_backend(path: Path) -> tuple[tokenizers.Tokenizer, bool]:
    """The library's tokenizer, and whether it is bounded."""
    if not path.is_file():
        raise UnsupportedModel(
            f"{path.parent.name} has no tokenizer.json, so its text cannot be encoded: save the tokenizer in "
            "that format (transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)) "
            "and put the file into the folder"
        )
    name, data = f"{path.parent.name}/tokenizer.json", path.read_bytes()
    is_bounded = check_tokenizer(data, name)
    backend = guarded(
        lambda: tokenizers.Tokenizer.from_buffer(data),
        CorruptFile,
        f"{name} cannot be read; fetch the file again",
    )
    return backend, is_bounded


def _leading(special: Sequence[bool]) -> int:
    """Special tokens in front of an empty text: the first, where there are two."""
    return min(1, len(special))
