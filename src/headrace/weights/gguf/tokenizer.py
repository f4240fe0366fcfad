"""Tokenizers from the metadata of GGUF files: SPM, byte-level BPE and WPM, built as `tokenizers` backends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.tokenization.guard import guarded
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.gguf.pre_tokenizers import DEFAULT, PRE_TOKENIZERS
from headrace.weights.gguf.vocabulary import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    corrupt,
    numbers,
    read_vocabulary,
    strings,
)

LOG = logging.getLogger("headrace.weights")
MAX_PIECE_CHARACTERS = 256  # of SPM: every way to cut a piece in two is tried; public ones have up to 64
_SPACE = "▁"
# Control tokens that end a turn in known chat formats; many files name only one of theirs as end of sequence.
_TURN_ENDS = frozenset(
    {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"}
)


class _Built(Struct, frozen=True, eq=False):
    """A backend that adds nothing yet, and which ends it adds where the file does not say."""

    backend: Backend
    add_bos: bool = False
    add_eos: bool = False


def gguf_tokenizer(metadata: Mapping[str, object]) -> Tokenizer:
    """The tokenizer that `tokenizer.ggml.*` describes.

    Raises UnsupportedModel for a kind of tokenizer or a pre-tokenizer that is not known, CorruptFile where
    the keys contradict themselves.
    """
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str):
        raise corrupt("model", model, "the kind of tokenizer")
    if model not in _KINDS:
        raise UnsupportedModel(
            f"the tokenizer of this GGUF file is of the kind {model[:60]!r}; known: {', '.join(_KINDS)}"
        )
    vocabulary = read_vocabulary(metadata)
    built = guarded(
        lambda: _KINDS[model](vocabulary), CorruptFile, "the tokenizer of this GGUF file cannot be built"
    )
    _add_tokens(built.backend, vocabulary)
    bos = _first_id(vocabulary, "bos_token_id", "cls_token_id")
    eos = _first_id(vocabulary, "eos_token_id", "seperator_token_id")
    add_bos = vocabulary.flag("add_bos_token", built.add_bos)
    add_eos = vocabulary.flag("add_eos_token", built.add_eos)
    for adds, token_id, key in ((add_bos, bos, "bos"), (add_eos, eos, "eos")):
        if adds and token_id is None:
            raise corrupt(f"{key}_token_id", None, f"the id that add_{key}_token asks for")
    if add_eos and eos is not None:
        _add_ends(built.backend, bos if add_bos else None, eos)
    return Tokenizer(built.backend, bos_id=bos, eos_ids=_eos_ids(vocabulary, eos), add_bos=add_bos)


def _spm(vocabulary: Vocabulary) -> _Built:
    """SentencePiece BPE as `transformers` converts it: a merge for every way to put a token together from two
    others, the best score first."""
    tokens = vocabulary.tokens
    ids = _ids(tokens)
    scores = numbers(vocabulary.metadata, "scores", len(tokens))
    if scores is None:
        raise corrupt("scores", None, "a score for each token")
    unknown = vocabulary.id_of("unknown_token_id") or 0
    backend = Backend(
        models.BPE(
            vocab=ids,
            merges=_merges(ids, scores),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    stages: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.flag("add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        stages.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(stages)
    return _Built(backend, add_bos=True)


def _merges(ids: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """All merges by falling score of what they make; those of one score (several ways to make a token, or
    runs of spaces, which all score the same) by their parts' ids, as in the tokenizer.json of Llama."""
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, token_id in ids.items():
        if len(token) > MAX_PIECE_CHARACTERS:
            raise corrupt("tokens", token, f"pieces of at most {MAX_PIECE_CHARACTERS} characters")
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[token_id], ids[left], ids[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _bpe(vocabulary: Vocabulary) -> _Built:
    name = vocabulary.metadata.get("tokenizer.ggml.pre")
    if name is None:
        LOG.warning(
            "the GGUF file does not say how texts are cut (tokenizer.ggml.pre): they are cut as llama.cpp"
            " does then, which may not be how the model was trained; a newer conversion says it"
        )
        name = DEFAULT
    kind = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UnsupportedModel(
            f"the GGUF key tokenizer.ggml.pre is {name!r:.60}: how texts are cut is not known; known: "
            f"{', '.join(PRE_TOKENIZERS)}"
        )
    merges: list[tuple[str, str]] = []
    for merge in strings(vocabulary.metadata, "merges"):
        cut = merge.find(" ", 1)
        if cut < 0:
            raise corrupt("merges", merge, "two parts and a space between them")
        merges.append((merge[:cut], merge[cut + 1 :]))
    ids = _ids(vocabulary.tokens)
    backend = Backend(models.BPE(vocab=ids, merges=merges, ignore_merges=kind.whole_words))
    backend.pre_tokenizer = kind.build(vocabulary.flag("add_space_prefix", False))
    backend.decoder = decoders.ByteLevel()
    return _Built(backend, add_bos=kind.add_bos)


def _wpm(vocabulary: Vocabulary) -> _Built:
    """WordPiece of BERT. GGUF marks the tokens that begin a word, BERT those that go on with one."""
    unknown = vocabulary.id_of("unknown_token_id")
    if unknown is None:
        raise corrupt("unknown_token_id", None, "an id")
    ids = _ids([_bert_spelling(token) for token in vocabulary.tokens])
    backend = Backend(models.WordPiece(vocab=ids, unk_token=vocabulary.tokens[unknown]))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return _Built(backend, add_bos=True, add_eos=True)


def _bert_spelling(token: str) -> str:
    if token.startswith(_SPACE):
        return token[1:]
    return token if token.startswith("[") and token.endswith("]") and len(token) > 2 else f"##{token}"


_KINDS: dict[str, Callable[[Vocabulary], _Built]] = {"llama": _spm, "gpt2": _bpe, "bert": _wpm}


def _ids(tokens: list[str]) -> dict[str, int]:
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        doubled = next(token for index, token in enumerate(tokens) if ids[token] != index)
        raise corrupt("tokens", doubled, "tokens that differ")
    return ids


def _add_tokens(backend: Backend, vocabulary: Vocabulary) -> None:
    """Tokens that are found in a text before anything else; all but the user's own are special."""
    library: Any = backend
    for types, special in (({UNKNOWN, CONTROL}, True), ({USER_DEFINED}, False)):
        found = [
            AddedToken(token, normalized=False, special=special)
            for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
            if token and kind in types
        ]
        if special:
            library.add_special_tokens(found)
        else:
            library.add_tokens(found)


def _add_ends(backend: Backend, bos: int | None, eos: int) -> None:
    """Every text gets an end of sequence, and a beginning where there is one to add."""
    ends = {"eos": eos} | ({} if bos is None else {"bos": bos})
    pattern = "$A eos" if bos is None else "bos $A eos"
    backend.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=list(ends.items()))


def _first_id(vocabulary: Vocabulary, *keys: str) -> int | None:
    return next((found for key in keys if (found := vocabulary.id_of(key)) is not None), None)


def _eos_ids(vocabulary: Vocabulary, eos: int | None) -> frozenset[int]:
    named = {eos, vocabulary.id_of("eot_token_id"), vocabulary.id_of("eom_token_id")}
    spelled = {
        index
        for index, token in enumerate(vocabulary.tokens)
        if token in _TURN_ENDS and vocabulary.types[index] == CONTROL
    }
    return frozenset({token_id for token_id in named if token_id is not None} | spelled)
