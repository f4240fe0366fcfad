"""A model as GGUF: one file, or all parts of one that was split."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

from headrace.errors import CorruptFile, ModelNotFound
from headrace.weights.gguf.reader import GgufFile, corrupt_metadata

MAX_PARTS = 512  # all are open at once
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


def open_parts(path: Path) -> list[GgufFile]:
    """The file, or where it is any part `name-0000K-of-0000N.gguf` of a model, all N in order.

    Raises ModelNotFound (no such file), CorruptFile, UnsupportedModel.
    """
    with ExitStack() as starts_in_reasoning:
        given = starts_in_reasoning.enter_context(_open(path))
        count = _integer(given, "split.count", 1)
        if count < 2:
            starts_in_reasoning.pop_all()
            return [given]
        match = _PART.fullmatch(path.name)
        if match is None or int(match[3]) != count or count > MAX_PARTS:
            raise CorruptFile(
                f"{path.name} is one of {count:,} parts (at most {MAX_PARTS} can be read), so its name must "
                f"end in -00001-of-{count:05}.gguf: give the parts the names they had"
            )
        parts = [
            starts_in_reasoning.enter_context(
                _open_part(path.with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf"))
            )
            for number in range(1, count + 1)
        ]
        given.close()
        _check_parts(parts)
        starts_in_reasoning.pop_all()
        return parts


def part_paths(path: Path) -> list[Path]:
    """The file, or by its name all parts of the model that it is one of. Nothing is opened."""
    match = _PART.fullmatch(path.name)
    count = 0 if match is None else int(match[3])
    if match is None or not 1 < count <= MAX_PARTS:
        return [path]
    return [path.with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf") for number in range(1, count + 1)]


def _open(path: Path) -> GgufFile:
    try:
        return GgufFile(path)
    except FileNotFoundError:
        raise ModelNotFound(f"there is no file {str(path)!r}: check the path") from None
    except OSError as error:
        raise CorruptFile(f"{path.name[:200]} cannot be read: {error.strerror}") from None


def _open_part(path: Path) -> GgufFile:
    try:
        return _open(path)
    except ModelNotFound:
        raise CorruptFile(
            f"{path.name} is missing in {path.parent}: put all parts of the model into one folder"
        ) from None


def _check_parts(parts: list[GgufFile]) -> None:
    """Each part says which it is, and no tensor is in two."""
    names: set[str] = set()
    for number, part in enumerate(parts):
        for key, wanted in (("split.no", number), ("split.count", len(parts))):
            if _integer(part, key) != wanted:
                raise corrupt_metadata(
                    part.path.name, key, part.metadata.get(key), f"{wanted}, as in its name,"
                )
        doubled = names & part.tensors.keys()
        if doubled:
            raise CorruptFile(f"{part.path.name} has {min(doubled)!r}, which an earlier part has too")
        names |= part.tensors.keys()
    total = _integer(parts[0], "split.tensors.count")
    if total != len(names):
        raise CorruptFile(
            f"the {len(parts)} parts of {parts[0].path.name} hold {len(names):,} tensors, {total:,} "
            "expected: they are not of one model; fetch them again"
        )


def _integer(file: GgufFile, key: str, default: int | None = None) -> int:
    value = file.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise corrupt_metadata(file.path.name, key, value, "an integer")
    return value
