"""Paths inside a model's folder."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from headrace.errors import CorruptFile

MAX_NAME = 255
"""Bytes of a name with its folders; of longer ones systems say that they are too long."""


def confined(folder: Path, name: str) -> Path:
    """`name` inside `folder`, links resolved. Raises CorruptFile for a name or a link that leads elsewhere;
    the links of a hub cache, from models--*/snapshots/<revision>/ to its blobs, may."""
    relative = PurePosixPath(name)
    if len(name.encode(errors="surrogatepass")) > MAX_NAME:
        raise CorruptFile(
            f"the file name {name[:60]!r}… has more than {MAX_NAME} bytes: fetch the model again"
        )
    if not name or "\0" in name or "\\" in name or relative.is_absolute() or ".." in relative.parts:
        raise CorruptFile(
            f"the file name {name[:200]!r} leads out of the model's folder: fetch the model again"
        )
    root = folder.resolve()
    try:
        path = (root / relative).resolve()
    except (OSError, RuntimeError):  # a loop of links
        raise CorruptFile(f"{name[:200]} is a link that leads nowhere: fetch the model again") from None
    allowed = [root]
    if root.parent.name == "snapshots" and root.parent.parent.name.startswith("models--"):
        # blobs of this model; blobs that the models of one cache share
        allowed += [root.parent.parent / "blobs", root.parent.parent.parent / "blobs"]
    if not any(path.is_relative_to(place) for place in allowed):
        raise CorruptFile(f"{name} is a link out of the model's folder: put the file itself there")
    return path
