"""What decides a model's bytes, as one digest of the contents of its files."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from headrace.weights.gguf.split_files import part_paths
from headrace.weights.modules import MODULES

SUFFIXES = (".safetensors", ".gguf", ".json", ".jinja", ".model", ".txt")


def weights_digest(path: Path) -> str:
    """Of a file with the other parts of its model, or of the files of a folder and of the folders of its
    modules, by name. The same on every machine; a file is read once as long as its size and time stay."""
    is_folder = path.is_dir()
    digest = hashlib.sha256()
    for one in sorted(_files(path)) if is_folder else _parts(path):
        found = one.stat()
        name = one.relative_to(path).as_posix() if is_folder else one.name
        digest.update(f"{name} {_contents(str(one), found.st_size, found.st_mtime_ns)}\n".encode())
    return digest.hexdigest()


def _parts(path: Path) -> list[Path]:
    """By its name a file may be a part and be none: loading says what is missing."""
    return [one for one in part_paths(path) if one == path or one.is_file()]


def _files(folder: Path) -> list[Path]:
    """What decides the bytes of a folder's model: modules have weights in folders of their own."""
    inside = [one for one in folder.iterdir() if one.suffix in SUFFIXES]
    if (folder / MODULES).is_file():
        modules = [one for one in folder.iterdir() if one.is_dir()]
        inside += [one for module in modules for one in module.iterdir() if one.suffix in SUFFIXES]
    return [one for one in inside if one.is_file()]


@lru_cache(maxsize=1024)
def _contents(path: str, size: int, mtime_ns: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
