"""User utterances and their intents, from CLINC150 (small), and from Banking77, which no model learns."""

import csv
import io
import json
import lzma
from pathlib import Path

from corpus import MissingData

FILE = "intents/clinc150/data_small.json.xz"
BANKING = "intents/banking77/train.csv.xz"

Remark = tuple[str, str]
"""The utterance, and its intent."""


def read_intents(data: Path) -> dict[str, list[Remark]]:
    """The splits `train`, `val` and `test`, in-scope intents only. Raises MissingData."""
    path = data / FILE
    if not path.is_file():
        raise MissingData(f"{path} is missing: pass --data the folder that holds {FILE}")
    splits = json.loads(lzma.decompress(path.read_bytes()))
    return {name: [(text, intent) for text, intent in splits[name]] for name in ("train", "val", "test")}


def read_banking(data: Path, examples: int) -> tuple[list[Remark], list[Remark]]:
    """Of each intent of Banking77 the first `examples` utterances, and all others. Raises MissingData."""
    path = data / BANKING
    if not path.is_file():
        raise MissingData(f"{path} is missing: pass --data the folder that holds {BANKING}")
    by_intent: dict[str, list[Remark]] = {}
    for row in csv.DictReader(io.StringIO(lzma.decompress(path.read_bytes()).decode())):
        by_intent.setdefault(row["category"], []).append((row["text"], row["category"]))
    learned = [remark for remarks in by_intent.values() for remark in remarks[:examples]]
    return learned, [remark for remarks in by_intent.values() for remark in remarks[examples:]]
