"""Technical documents: the Markdown and reStructuredText of 30 projects, as running text."""

import re
from pathlib import Path

from corpus import read_archive

ARCHIVE = "text/techdocs.tar.xz"
ENDINGS = (".md", ".rst", ".mdx", ".txt")
SHORTEST = 400  # characters


def read_documents(data: Path) -> list[str]:
    """Each document without front matter, long lines of symbols, and images. Raises MissingData."""
    files = read_archive(data / ARCHIVE)
    texts = (clean(text) for name, text in sorted(files.items()) if name.endswith(ENDINGS))
    return [text for text in texts if len(text) >= SHORTEST]


def clean(text: str) -> str:
    """The text without front matter, markup of HTML, images and long lines of symbols."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text.replace("\r\n", "\n"), flags=re.DOTALL)
    text = re.sub(r"<[^<>]+>|!\[[^\]]*\]\([^)]*\)", "", text)
    lines = [line.rstrip() for line in text.split("\n")]
    kept = [line for line in lines if len(line) < 300 and not re.search(r"(?:[^\w\s]\s?){24}", line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
