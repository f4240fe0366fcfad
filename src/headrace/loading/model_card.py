"""A model's license and card, as its files state them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_KNOWN = {  # what the first lines of a license's text say
    "Apache License": "apache-2.0",
    "MIT License": "mit",
    "GNU GENERAL PUBLIC LICENSE": "gpl",
    "LLAMA 2 COMMUNITY LICENSE": "llama2",
    "LLAMA 3": "llama3",
    "Gemma Terms of Use": "gemma",
}


def license(path: Path, metadata: Mapping[str, object] | None) -> str | None:
    """The license by the `general.license` of a GGUF file; of a folder, by the front matter of README.md, or
    by the first lines of LICENSE. None where none of them says."""
    if metadata is not None:
        value = metadata.get("general.license")
        return value if isinstance(value, str) else None
    return _front_matter(path / "README.md") or _license_text(path)


def card(path: Path) -> str | None:
    """The text of a folder's README.md without its front matter; None where it has none."""
    file = path / "README.md"
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    if text.startswith("---\n"):
        text = text[4:].partition("\n---\n")[2]
    return text.strip() or None


def about(path: Path) -> str | None:
    """The first sentence of a folder's card; None where it has no card, or one that begins with markup."""
    paragraphs = (card(path) or "").split("\n\n")
    prose = [text for text in paragraphs if text[:1].isalpha()]
    if not prose or not all(text.startswith("#") for text in paragraphs[: paragraphs.index(prose[0])]):
        return None
    return re.split(r"(?<=[.!?])\s", " ".join(prose[0].split()))[0]


def _front_matter(file: Path) -> str | None:
    if not file.is_file():
        return None
    with file.open(encoding="utf-8", errors="replace") as lines:
        if next(lines, "").strip() != "---":
            return None
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == "license":
                return value.strip().strip("'\"") or None
            if line.strip() == "---":
                return None
    return None


def _license_text(folder: Path) -> str | None:
    for name in ("LICENSE", "LICENSE.txt", "LICENSE.md"):
        file = folder / name
        if file.is_file():
            with file.open(encoding="utf-8", errors="replace") as text:
                head = text.read(2000)
            return next((known for words, known in _KNOWN.items() if words in head), f"see {name}")
    return None
