"""What decides a model's bytes, as one digest of the contents of its files."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

SUFFIXES = (".safetensors", ".gguf", ".json", ".jinja", ".model", ".txt")


def weights_digest(path: Path) -> str:
    """Of a file, or of the files of a folder by name. The same on every machine; a file is read once as long
    as its size and time stay."""
    files = [path] if path.is_file() else sorted(one for one in path.iterdir() if one.suffix in SUFFIXES)
    digest = hashlib.sha256()
    for one in files:
        found = one.stat()
        digest.update(f"{one.name} {_contents(str(one), found.st_size, found.st_mtime_ns)}\n".encode())
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def _contents(path: str, size: int, mtime_ns: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
