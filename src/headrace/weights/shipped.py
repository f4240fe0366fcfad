"""The models that ship inside the package."""

from __future__ import annotations

from pathlib import Path

SHIPPED_DEFAULT = "mini"
SHIPPED_DRAFTS = {"mini": "nano"}
SHIPPED_FOLDER = Path(__file__).resolve().parent.parent / "shipped"


def list_shipped() -> dict[str, Path]:
    """Name → folder of each."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED_FOLDER.glob("*/config.json"))}


def shipped_draft(folder: Path) -> str | None:
    """The name of the draft model that ships for the model in `folder`."""
    name = SHIPPED_DRAFTS.get(folder.name) if folder.parent == SHIPPED_FOLDER else None
    return name if name in list_shipped() else None
