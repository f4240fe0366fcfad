"""The models that ship inside the package."""

from __future__ import annotations

from pathlib import Path

SHIPPED_DEFAULT = "mini"
SHIPPED_WEIGHTS = {"mini": "int8"}  # a third of the time of bfloat16 a token
SHIPPED_FOLDER = Path(__file__).resolve().parents[2] / "bundled"


def list_shipped() -> dict[str, Path]:
    """Name → folder of each."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED_FOLDER.glob("*/config.json"))}


def shipped_weights(folder: Path) -> str | None:
    """The format that the model in `folder` is to run in, where it ships and says so."""
    return SHIPPED_WEIGHTS.get(folder.name) if _ships(folder) else None


def _ships(folder: Path) -> bool:
    return folder.resolve().parent == SHIPPED_FOLDER
