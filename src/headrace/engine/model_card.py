"""Whose a model is: the licence that its files name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_KNOWN = {  # what the first lines of a licence's text say
    "Apache License": "apache-2.0",
    "MIT License": "mit",
    "GNU GENERAL PUBLIC LICENSE": "gpl",
    "LLAMA 2 COMMUNITY LICENSE": "llama2",
    "LLAMA 3": "llama3",
    "Gemma Terms of Use": "gemma",
}


def licence(path: Path, metadata: Mapping[str, object] | None) -> str | None:
    """The licence by the `general.license` of a GGUF file; of a folder, by the front matter of README.md, or
    by the first lines of LICENSE. None where none of them says."""
    if metadata is not None:
        value = metadata.get("general.license")
        return value if isinstance(value, str) else None
    return _front_matter(path / "README.md") or _licence_text(path)


def _front_matter(card: Path) -> str | None:
    if not card.is_file():
        return None
    with card.open(encoding="utf-8", errors="replace") as lines:
        if next(lines, "").strip() != "---":
            return None
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == "license":
                return value.strip().strip("'\"") or None
            if line.strip() == "---":
                return None
    return None


def _licence_text(folder: Path) -> str | None:
    for name in ("LICENSE", "LICENSE.txt", "LICENSE.md"):
        file = folder / name
        if file.is_file():
            with file.open(encoding="utf-8", errors="replace") as text:
                head = text.read(2000)
            return next((known for words, known in _KNOWN.items() if words in head), f"see {name}")
    return None
