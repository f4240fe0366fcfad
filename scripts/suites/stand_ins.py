"""Models that stand in the place of those that the suites download.

stories260K is itself, as a GGUF file with the chat template that a case asks for. A BERT with random weights
and the real vocabulary stands for the embedding model: the cases look at shapes and counts of tokens only.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file

HEADRACE = Path(sys.executable).parent / "headrace"
LONGEST = 8192  # like llama.cpp, the cases go beyond the 512 tokens that the model was trained on
INFILL_MARKS = ("▁<PRE>", "▁<SUF>", "▁<MID>")  # as in Code Llama
POOLING = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
WIDTH, POSITIONS = 32, 512


def stories(folder: Path, data: Path, template: str, *, infill: bool) -> Path:
    """stories260K with that chat template; `infill`: the last tokens of its vocabulary are marks."""
    digest = hashlib.sha256(f"{template}{infill}".encode()).hexdigest()[:12]
    model = folder / f"stories260K-{digest}.gguf"
    if model.exists():
        return model
    with tempfile.TemporaryDirectory(dir=folder) as made:
        source = Path(made) / "hf"
        source.mkdir()
        for path in (data / "stories260K" / "hf").iterdir():
            shutil.copyfile(path, source / path.name)
        (source / "chat_template.jinja").write_text(template)
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config | {"max_position_embeddings": LONGEST}))
        if infill:
            _rename_tokens(source / "tokenizer.json")
        written = Path(made) / "model.gguf"
        command = [HEADRACE, "quantize", source, written, "--quantization", "f16"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        written.rename(model)
    return model


def _rename_tokens(path: Path) -> None:
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    for mark in INFILL_MARKS:
        # Tokens that no merge makes or reads can have another name.
        used = {part for merge in content["model"]["merges"] for part in _parts(merge)}
        name = max((name for name in vocabulary if name not in used and len(name) == 1), key=vocabulary.get)
        token = vocabulary.pop(name)
        vocabulary[mark] = token
        content["added_tokens"].append(
            {"id": token, "content": mark, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        )
    path.write_text(json.dumps(content))


def _parts(merge: str | list[str]) -> list[str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return [left, right, left + right]


def encoder(folder: Path, data: Path, pooling: str) -> Path:
    """A BERT with random weights and the vocabulary of bert-base-uncased."""
    model = folder / f"bert-{pooling}"
    if (model / "model.safetensors").exists():
        return model
    size = _vocabulary(model, data)
    (model / "config.json").write_text(json.dumps(_config(size)))
    if pooling in POOLING:
        modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
        listed = [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, (path, kind) in enumerate(modules.items())
        ]
        (model / "modules.json").write_text(json.dumps(listed))
        (model / "1_Pooling").mkdir(exist_ok=True)
        pooled = {"word_embedding_dimension": WIDTH, f"pooling_mode_{POOLING[pooling]}": True}
        (model / "1_Pooling" / "config.json").write_text(json.dumps(pooled))
    save_file(_weights(size), model / "model.safetensors")
    return model


def classifier(folder: Path, data: Path, labels: Sequence[str]) -> Path:
    """A BERT with random weights that tells labels apart."""
    model = folder / f"bert-{'-'.join(labels)}"
    if (model / "model.safetensors").exists():
        return model
    size = _vocabulary(model, data)
    head = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    (model / "config.json").write_text(json.dumps(_config(size) | head))
    weights = {f"bert.{name}": value for name, value in _weights(size).items()}
    random = np.random.default_rng(1)
    for name, rows in (("bert.pooler.dense", WIDTH), ("classifier", len(labels))):
        weights[f"{name}.weight"] = random.normal(0, 0.2, (rows, WIDTH)).astype(np.float32)
        weights[f"{name}.bias"] = np.zeros(rows, np.float32)
    save_file(weights, model / "model.safetensors")
    return model


def _vocabulary(model: Path, data: Path) -> int:
    """Write the vocabulary of bert-base-uncased into the model's folder; how many tokens it has."""
    model.mkdir(parents=True, exist_ok=True)
    vocabulary = lzma.decompress((data / "tokenizers" / "hf" / "bert" / "vocab.txt.xz").read_bytes())
    (model / "vocab.txt").write_bytes(vocabulary)
    words = tokenizers.BertWordPieceTokenizer(str(model / "vocab.txt"), lowercase=True)
    words.save(str(model / "tokenizer.json"))
    return words.get_vocab_size()


def _config(size: int) -> dict[str, object]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": size,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }


def _weights(size: int) -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (size, WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
    }
    products = {f"attention.self.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")} | {
        "attention.output.dense": (WIDTH, WIDTH),
        "intermediate.dense": (2 * WIDTH, WIDTH),
        "output.dense": (WIDTH, 2 * WIDTH),
    }
    for at in (f"encoder.layer.{layer}" for layer in range(2)):
        shapes |= {f"{at}.{name}.weight": shape for name, shape in products.items()}
        shapes |= {f"{at}.{name}.LayerNorm.weight": (WIDTH,) for name in ("attention.output", "output")}
    random = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        scale = np.ones(shape) if "LayerNorm" in name else random.normal(0, 0.2, shape)
        found[name] = scale.astype(np.float32)
        if "LayerNorm" in name or name.startswith("encoder"):
            found[name.removesuffix("weight") + "bias"] = np.zeros(shape[0], np.float32)
    return found
