"""Write tests/goldens/gliner: tiny random GLiNER checkpoints on DeBERTa v3, and the entities that the package
`gliner` finds with them.

Needs torch, transformers and gliner (`pip install --no-deps gliner`); the tests that read the goldens do not.
"""

import json
import sys
from pathlib import Path

import gliner
import torch
from gliner.config import UniEncoderSpanConfig, UniEncoderTokenConfig
from gliner.model import BaseGLiNER, UniEncoderSpanGLiNER, UniEncoderTokenGLiNER

from gliner_goldens import fill, tokenizer
from golden_families import DEBERTA_V3

TEXTS = ["John Miller lives in Berlin, since 2019.", "Zürich-West", "a b_c d", "It was the best of times."]
LABELS = ["person", "city name", "year"]
MARKS = ("<<ENT>>", "<<SEP>>")
COMMON = {
    "model_name": "tiny",
    "hidden_size": 24,
    "max_width": 4,
    "max_len": 40,
    "dropout": 0.0,
    "ent_token": MARKS[0],
    "sep_token": MARKS[1],
    "embed_ent_token": True,
    "subtoken_pooling": "first",
}
KINDS = {
    "span": (UniEncoderSpanConfig, UniEncoderSpanGLiNER, {"span_mode": "markerV0", "num_rnn_layers": 1}),
    "token": (
        UniEncoderTokenConfig,
        UniEncoderTokenGLiNER,
        {"span_mode": "token_level", "num_rnn_layers": 0},
    ),
}


def entities(model: BaseGLiNER, least: float) -> list[list[dict[str, object]]]:
    """Of each text, with scores above `least`."""
    return [model.predict_entities(text, LABELS, threshold=least, flat_ner=True) for text in TEXTS]


@torch.no_grad()
def make(folder: Path, kind: str) -> str:
    """Write one folder; returns a summary line."""
    config_class, model_class, fields = KINDS[kind]
    tokens = tokenizer(MARKS)
    size = len(tokens)
    encoder = {**DEBERTA_V3, "num_attention_heads": 2, "vocab_size": size, "max_position_embeddings": 128}
    del encoder["architectures"]
    config = config_class(
        **COMMON, **fields, vocab_size=size, encoder_config=encoder, class_token_index=size - 2
    )
    model = model_class(config, tokenizer=tokens, backbone_from_pretrained=False).eval()
    for seed in range(200):  # until every text has an entity
        fill(model, seed)
        found = {f"{least}": entities(model, least) for least in (0.3, 0.5, 0.7)}
        if all(found["0.3"]) and sum(map(len, found["0.5"])) >= 4:
            break
    else:
        raise SystemExit(f"{kind}: no seed gives entities in every text")
    model.save_pretrained(folder, safe_serialization=True)
    golden = {
        "made_with": f"gliner {gliner.__version__}, seed {seed}",
        "texts": TEXTS,
        "labels": LABELS,
        "found": found,
    }
    (folder / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    return f"{folder.name}: {[sum(map(len, several)) for several in found.values()]} entities"


def main() -> int:
    out = Path(__file__).parent.parent / "tests" / "goldens" / "gliner"
    for kind in sys.argv[1:] or KINDS:
        print(make(out / kind, kind), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
