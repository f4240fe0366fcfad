"""A tokenizer as the `tokenizer.ggml.*` keys of a GGUF file."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
from tokenizers.pre_tokenizers import PreTokenizer as BackendPreTokenizer

from headrace.errors import UnsupportedModel
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.gguf.pre_tokenizers import PRE_TOKENIZERS
from headrace.weights.gguf.tokenizer import gguf_tokenizer
from headrace.weights.gguf.vocabulary import CONTROL, NORMAL, UNKNOWN, USER_DEFINED

_UNUSED, _BYTE = 5, 6
_PREFIX = "tokenizer.ggml."
# What tells pre-tokenizers apart; whatever is written must give the same ids for all of it.
_PROBES = (
    "Hello, world! It's 12345 o'clock; I'LL be there, won't you?  Two  spaces\n\n\nlines\t\ttabs 3.14 a1b2",
    " leading, trailing ",
    "Ünïcödé: 你好世界 こんにちは 한국어 привет мир שלום 🙂🚀 naïve café № ½ ²",
    "def f(x):\n    return x**2 # comment\n\nif __name__ == '__main__':\n\tprint(f(10_000))\r\n",
    "C:\\path\\file.txt https://example.org/a?b=c&d=%20 e@mail.com $1,234.56 100% [x](y) <b>z</b>",
    "HTTPServer XMLHttpRequest camelCase snake_case SHOUTING don'T 'S 're a.b..c...d !!!??? ---",
)


def tokenizer_keys(tokenizer: Tokenizer, rows: int) -> dict[str, object]:
    """The keys from which `gguf_tokenizer` (and llama.cpp) builds the same tokenizer; `rows` is the size of
    the token table, whose rows without a token get an unused one.

    UnsupportedModel where no keys give the same tokens.
    """
    state = json.loads(tokenizer.to_json())
    model = state["model"]
    if model["type"] != "BPE":
        raise _unwritable(f"its model is {model['type']}")
    keys = _vocabulary(state, tokenizer, rows) | _ends(tokenizer)
    tries = _spm_keys(keys, model) if model.get("byte_fallback") else _bpe_keys(tokenizer, model)
    for more in tries:
        found = {_PREFIX + key: value for key, value in (keys | more).items()}
        if _same(tokenizer, gguf_tokenizer(found)):
            return found
    raise _unwritable("how it cuts texts has no name in GGUF")


def _vocabulary(state: dict[str, Any], tokenizer: Tokenizer, rows: int) -> dict[str, object]:
    vocabulary: dict[str, int] = state["model"]["vocab"]
    added: list[dict[str, Any]] = state["added_tokens"]
    size = max([rows, *(1 + number for number in vocabulary.values()), *(1 + entry["id"] for entry in added)])
    tokens = [f"[PAD{number}]" for number in range(size)]
    types = [_UNUSED] * size
    for token, number in vocabulary.items():
        is_byte = len(token) == 6 and token.startswith("<0x") and state["model"].get("byte_fallback")
        tokens[number], types[number] = token, _BYTE if is_byte else NORMAL
    for entry in added:
        tokens[entry["id"]], types[entry["id"]] = (
            entry["content"],
            CONTROL if entry["special"] else USER_DEFINED,
        )
    unknown = state["model"].get("unk_token")
    keys: dict[str, object] = {}
    if unknown is not None and unknown in vocabulary:
        types[vocabulary[unknown]] = UNKNOWN
        keys["unknown_token_id"] = vocabulary[unknown]
    return keys | {"tokens": tokens, "token_type": np.array(types, np.int32)}


def _ends(tokenizer: Tokenizer) -> dict[str, object]:
    """What is added around a text is read off one, as any of the tokenizer's files may have said it."""
    ids, plain = tokenizer.encode("a"), tokenizer.encode("a", add_special=False)
    start = next(first for first in range(len(ids)) if ids[first : first + len(plain)] == plain)
    before, after = ids[:start], ids[start + len(plain) :]
    bos = before[0] if before else tokenizer.bos_id
    eos = [*after, *sorted(tokenizer.eos_ids - set(after))]
    keys: dict[str, object] = {"add_bos_token": bool(before), "add_eos_token": bool(after)}
    if bos is not None:
        keys["bos_token_id"] = bos
    for key, number in zip(("eos_token_id", "eot_token_id", "eom_token_id"), eos, strict=False):
        keys[key] = number
    return keys


def _spm_keys(keys: dict[str, object], model: dict[str, Any]) -> list[dict[str, object]]:
    """Scores that fall in the order of the merges; with and without a space before each text."""
    tokens = cast("list[str]", keys["tokens"])
    scores = dict.fromkeys(model["vocab"], -1e9)
    for rank, merge in enumerate(_pairs(model)):
        made = merge[0] + merge[1]
        scores[made] = max(scores.get(made, -1e9), -float(rank))
    values = np.array([scores.get(token, 0.0) for token in tokens], np.float32)
    common: dict[str, object] = {"model": "llama", "scores": values}
    return [common | {"add_space_prefix": prefix} for prefix in (True, False)]


def _bpe_keys(tokenizer: Tokenizer, model: dict[str, Any]) -> list[dict[str, object]]:
    """One try for each pre-tokenizer that cuts the probes as this tokenizer does."""
    merges = [f"{left} {right}" for left, right in _pairs(model)]
    own = tokenizer.pre_tokenizer
    tries: list[dict[str, object]] = []
    for name, kind in PRE_TOKENIZERS.items():
        for prefix in (False, True):
            cuts = kind.build(prefix)
            if (
                kind.whole_words == bool(model.get("ignore_merges"))
                and own is not None
                and _cuts(own) == _cuts(cuts)
            ):
                tries.append({"model": "gpt2", "pre": name, "merges": merges, "add_space_prefix": prefix})
    return tries


def _cuts(pre_tokenizer: BackendPreTokenizer) -> list[list[str]]:
    return [[piece for piece, _ in pre_tokenizer.pre_tokenize_str(probe)] for probe in _PROBES]


def _pairs(model: dict[str, Any]) -> list[tuple[str, str]]:
    """Merges, which older files spell as one text with a space."""
    pairs: list[Any] = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
    return [(left, right) for left, right in pairs]


def _same(ours: Tokenizer, theirs: Tokenizer) -> bool:
    return all(ours.encode(probe) == theirs.encode(probe) for probe in _PROBES)


def _unwritable(why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"this tokenizer cannot be written to GGUF ({why}): write a folder with safetensors instead"
    )
