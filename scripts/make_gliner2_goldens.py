"""Write tests/goldens/gliner2: tiny random GLiNER 2 checkpoints on DeBERTa v3, and the entities and classes
that the package `gliner2` finds with them.

Needs torch, transformers and gliner2 (`pip install --no-deps gliner2 peft accelerate`); the tests that read
the goldens do not.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from gliner2 import GLiNER2
from gliner2.configuration import ExtractorConfig
from gliner2.processor import SchemaTransformer
from transformers import AutoConfig

from gliner_goldens import fill, tokenizer
from golden_families import DEBERTA_V3

TEXTS = [
    "John Miller lives in Berlin, since 2019.",
    "Zürich-West",
    "a b_c d?",
    "It was ann@a.de of www.it.de !",
]
LABELS = ["person", "city name", "year"]
LARGEST = 0.97
KINDS: dict[str, dict[str, str]] = {
    "lstm": {"counting_layer": "count_lstm"},
    "transformer": {"counting_layer": "count_lstm_v2", "token_pooling": "mean"},
}


def entities(model: GLiNER2, labels: list[str], least: float) -> list[dict[str, list[dict[str, Any]]]]:
    """Of each text the entities of each label, with scores of at least `least`."""
    asked = {"threshold": least, "include_confidence": True, "include_spans": True}
    return [model.extract_entities(text, labels, **asked)["entities"] for text in TEXTS]


def classes(model: GLiNER2, *, several: bool) -> list[list[float]]:
    """Of each text the probabilities of all labels."""
    found: list[list[float]] = []
    for text in TEXTS:
        task = {"classification": {"labels": LABELS, "multi_label": several, "cls_threshold": 0.0}}
        if not several:  # the package shows the best of these alone
            task["classification"] |= {"multi_label": True, "class_act": "softmax"}
        shown = model.classify_text(text, task, include_confidence=True)["classification"]
        by_label = {one["label"]: one["confidence"] for one in shown}
        found.append([by_label[label] for label in LABELS])
    return found


def spread(model: GLiNER2) -> None:
    """Weights that bfloat16 has, the last layer so small that scores are neither all alike nor 0 or 1."""
    while max(scores(model)) > LARGEST:
        for parameter in last_of(model).parameters():
            parameter.mul_(0.7)
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16().float())


def last_of(model: GLiNER2) -> torch.nn.Module:
    """The last layer of what makes vectors of labels."""
    embed = model.count_embed
    return embed.projector[2] if hasattr(embed, "projector") else embed.transformer.out_projector[4]


def scores(model: GLiNER2) -> list[float]:
    """All scores above a half."""
    found = [one for several in entities(model, LABELS, 0.5) for one in several.values()]
    return [0.0, *(one["confidence"] for several in found for one in several)]


@torch.no_grad()
def make(folder: Path, kind: str) -> str:
    """Write one folder; returns a summary line."""
    tokens = tokenizer()
    tokens.add_special_tokens({"additional_special_tokens": SchemaTransformer.SPECIAL_TOKENS})
    fields = {
        **DEBERTA_V3,
        "num_attention_heads": 2,
        "vocab_size": len(tokens),
        "max_position_embeddings": 128,
    }
    del fields["architectures"]
    encoder = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config = ExtractorConfig(model_name="tiny", max_width=4, **KINDS[kind])
    model = GLiNER2(config, encoder_config=encoder, tokenizer=tokens).eval()
    for seed in range(500):  # until every text has an entity, and more than one label one
        fill(model, seed)
        spread(model)
        found = {f"{least}": entities(model, LABELS, least) for least in (0.3, 0.5)}
        single = {label: entities(model, [label], 0.3) for label in LABELS}
        chosen = {label for one in found["0.5"] for label, several in one.items() if several}
        if all(any(one.values()) for one in found["0.3"]) and len(chosen) > 1:
            break
    else:
        raise SystemExit(f"{kind}: no seed gives entities in every text")
    golden = {
        "made_with": f"gliner2 {version('gliner2')}, seed {seed}",
        "texts": TEXTS,
        "labels": LABELS,
        "found": found,
        "of_one_label": single,
        "classes": {"softmax": classes(model, several=False), "sigmoid": classes(model, several=True)},
    }
    tokens.save_pretrained(folder)
    encoder.save_pretrained(folder / "encoder_config")
    model.to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)  # which loses nothing
    (folder / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    for file in folder.rglob("*.*"):
        file.chmod(0o644)
    counts = [sum(len(several) for one in texts for several in one.values()) for texts in found.values()]
    return f"{folder.name}: seed {seed}, {counts} entities"


def main() -> int:
    out = Path(__file__).parent.parent / "tests" / "goldens" / "gliner2"
    for kind in sys.argv[1:] or KINDS:
        print(make(out / kind, kind), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
