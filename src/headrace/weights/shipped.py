"""The models that ship inside the package."""

from __future__ import annotations

from pathlib import Path

SHIPPED_DEFAULT = "novelette"
SHIPPED_FOLDER = Path(__file__).resolve().parent.parent / "shipped"


def list_shipped() -> dict[str, Path]:
    """Name → folder of each."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED_FOLDER.glob("*/config.json"))}
