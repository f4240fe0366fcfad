"""The parts of a model that need no engine: its served name, tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.chat.templates.chat_template import ChatTemplate, load_template
from headrace.tokenization.tokenizer import Tokenizer, load_tokenizer
from headrace.weights.gguf.chat_template import gguf_template
from headrace.weights.gguf.tokenizer import gguf_tokenizer


def served_name(name: str, folder: Path) -> str:
    """The name that clients see: a path of this machine is not theirs to know, its last part is."""
    return folder.resolve().name if Path(name).exists() else name


def load_text_assets(
    path: Path, metadata: Mapping[str, object] | None
) -> tuple[Tokenizer, ChatTemplate | None]:
    """Tokenizer and template of a folder, or of the `metadata` that a single file holds."""
    if metadata is None:
        return load_tokenizer(path), load_template(path)
    tokenizer = gguf_tokenizer(metadata)
    return tokenizer, gguf_template(metadata, tokenizer)
