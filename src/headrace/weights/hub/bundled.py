"""The models that ship inside the package."""

from __future__ import annotations

from pathlib import Path

BUNDLED_DEFAULT = "mini"
SHIPPED_WEIGHTS = {"mini": "int8"}  # a third of the time of bfloat16 a token
BUNDLED_FOLDER = Path(__file__).resolve().parents[2] / "bundled"


def list_bundled() -> dict[str, Path]:
    """Name → folder of each."""
    return {path.parent.name: path.parent for path in sorted(BUNDLED_FOLDER.glob("*/config.json"))}


def bundled_guards() -> dict[str, Path]:
    """Name → file of each classifier for guards, see `weights/ngram_classifier.py`."""
    return {path.stem: path for path in sorted((BUNDLED_FOLDER / "guards").glob("*.safetensors"))}


def bundled_weights(folder: Path) -> str | None:
    """The format that the model in `folder` is to run in, where it ships and says so."""
    return SHIPPED_WEIGHTS.get(folder.name) if _ships(folder) else None


def _ships(folder: Path) -> bool:
    return folder.resolve().parent == BUNDLED_FOLDER
