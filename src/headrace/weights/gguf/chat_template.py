"""The chat template inside a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.chat.templates.chat_template import ChatTemplate
from headrace.errors import CorruptFile
from headrace.tokenization.tokenizer import Tokenizer

_KEY = "tokenizer.chat_template"
_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}


def gguf_template(metadata: Mapping[str, object], tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template that the metadata of a GGUF file holds, None where it holds none; its variant for tools is
    used when tools are given. Raises CorruptFile, TemplateError."""
    source = _source(metadata, _KEY)
    if source is None:
        return None
    tokens: dict[str, str] = {}
    for name, key in _TOKENS.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}")
        text = tokenizer.pieces.token_of(token_id) if isinstance(token_id, int) else None
        if text is not None:
            tokens[name] = text
    return ChatTemplate(
        source,
        bos_token=tokens.get("bos_token"),
        eos_token=tokens.get("eos_token"),
        special_tokens=dict(tokens),
        tool_source=_source(metadata, f"{_KEY}.tool_use"),
    )


def _source(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise CorruptFile(f"the GGUF key {key} is {value!r:.80}, a string expected: fetch the file again")
    return value
