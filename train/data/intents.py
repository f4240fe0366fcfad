"""User utterances and their intents, from CLINC150 (small)."""

import json
import lzma
from pathlib import Path

from corpus import MissingData

FILE = "intents/clinc150/data_small.json.xz"

Remark = tuple[str, str]
"""The utterance, and its intent."""


def read_intents(data: Path) -> dict[str, list[Remark]]:
    """The splits `train`, `val` and `test`, in-scope intents only. Raises MissingData."""
    path = data / FILE
    if not path.is_file():
        raise MissingData(f"{path} is missing: pass --data the folder that holds {FILE}")
    splits = json.loads(lzma.decompress(path.read_bytes()))
    return {name: [(text, intent) for text, intent in splits[name]] for name in ("train", "val", "test")}
