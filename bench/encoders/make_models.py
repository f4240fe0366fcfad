"""Encoders with random weights in the shapes that people use, as folders of sentence-transformers.

    python bench/encoders/make_models.py FOLDER --vocabulary VOCAB.TXT.XZ [--shapes minilm,bert,...]

Needs torch and transformers. The vocabulary is BERT's, a token a line.
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import AutoModel, BertConfig, ModernBertConfig, PreTrainedConfig, XLMRobertaConfig

SHAPES: dict[str, PreTrainedConfig] = {
    "minilm": BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    ),
    "bert": BertConfig(),
    "modernbert": ModernBertConfig(),
    "xlmr": XLMRobertaConfig(
        vocab_size=250_002, type_vocab_size=1, max_position_embeddings=514, layer_norm_eps=1e-5
    ),
}
LONGEST = 512


def make(shape: str, folder: Path, vocabulary: Path) -> None:
    """Write `folder` / `shape`: float32 weights, the tokenizer, mean pooling and a norm."""
    path = folder / shape
    torch.manual_seed(0)
    AutoModel.from_config(SHAPES[shape]).eval().save_pretrained(path)
    words = lzma.decompress(vocabulary.read_bytes()).decode().split("\n")
    entries = {word: at for at, word in enumerate(words) if word}
    BertWordPieceTokenizer(vocab=entries).save(str(path / "tokenizer.json"))
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    write(
        path / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LONGEST, **special},
    )
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": at, "name": str(at), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, place) in enumerate(kinds.items())
    ]
    write(path / "modules.json", modules)
    width = SHAPES[shape].hidden_size
    (path / "1_Pooling").mkdir(exist_ok=True)
    (path / "2_Normalize").mkdir(exist_ok=True)
    write(
        path / "1_Pooling" / "config.json",
        {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True},
    )
    write(path / "sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})


def write(path: Path, content: object) -> None:
    """A JSON file."""
    path.write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    """Makes what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    asked = parser.parse_args()
    for shape in asked.shapes.split(","):
        if not (asked.folder / shape / "config.json").is_file():
            make(shape, asked.folder, asked.vocabulary)


if __name__ == "__main__":
    main()
