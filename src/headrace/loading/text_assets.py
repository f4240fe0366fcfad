"""The parts of a model that need no engine: its served name, tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.chat.templates.chat_template import ChatTemplate, load_template
from headrace.tokenization.tokenizer import Tokenizer, load_tokenizer
from headrace.weights.confined import confined
from headrace.weights.gguf.chat_template import gguf_template
from headrace.weights.gguf.tokenizer import gguf_tokenizer

TEXT_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json"),
)
MORE_TEMPLATES = "additional_chat_templates"


def served_name(name: str, folder: Path) -> str:
    """The name that clients see: a path of this machine is not theirs to know, its last part is."""
    return folder.resolve().name if Path(name).exists() else name


def _check_links(folder: Path) -> None:
    """A link to a file elsewhere would show its text to clients, as a template's."""
    more = [f"{MORE_TEMPLATES}/{path.name}" for path in (folder / MORE_TEMPLATES).glob("*.jinja")]
    for name in (*TEXT_FILES, *more):
        confined(folder, name)


def load_text_assets(
    path: Path, metadata: Mapping[str, object] | None
) -> tuple[Tokenizer, ChatTemplate | None]:
    """Tokenizer and template of a folder, or of the `metadata` that a single file holds. CorruptFile where
    one of the folder's files is a link out of it."""
    if metadata is None:
        _check_links(path)
        return load_tokenizer(path), load_template(path)
    tokenizer = gguf_tokenizer(metadata)
    return tokenizer, gguf_template(metadata, tokenizer)
