"""Complete folders of tiny encoders with heads: a golden's weights and a tokenizer of words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from golden import FOLDER

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?'-éß"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def head_model(folder: Path, golden: str, **changes: object) -> Path:
    """A model folder whose tokenizer makes a token of each letter, with `##` inside of words."""
    target = folder / golden.replace("/", "_")
    target.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDER / golden / name, target / name)
    config = json.loads((target / "config.json").read_text()) | changes
    config = {name: value for name, value in config.items() if value is not None}
    (target / "config.json").write_text(json.dumps(config))
    pieces = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = {piece: number for number, piece in enumerate(pieces[: config["vocab_size"]])}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(target / "tokenizer.json"))
    names = zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True)
    settings: dict[str, object] = {f"{name}_token": token for name, token in names}
    settings |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    return target
