"""What tiny GLiNER checkpoints of the goldens have in common: a tokenizer as DeBERTa v3's, random weights."""

from collections.abc import Iterable

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import Unigram
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
LETTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,-_"
PIECES = ("▁John", "▁Ber", "lin", "▁per", "son", "▁the")


def tokenizer(marks: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """Pieces as in DeBERTa v3: a unigram model whose words begin with a mark for the space before."""
    scores = [(piece, 0.0) for piece in SPECIAL]
    scores += [(piece, -1.0) for piece in PIECES] + [(letter, -2.0) for letter in LETTERS]
    tokens = Tokenizer(Unigram(scores, unk_id=3))
    tokens.normalizer = Replace("  ", " ")
    tokens.pre_tokenizer = Metaspace()
    tokens.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokens.add_special_tokens([AddedToken(mark, special=True) for mark in (*SPECIAL, *marks)])
    names = zip(("pad", "cls", "sep", "unk", "mask"), SPECIAL, strict=True)
    return PreTrainedTokenizerFast(tokenizer_object=tokens, **{f"{name}_token": t for name, t in names})


def fill(model: torch.nn.Module, seed: int) -> None:
    """Random weights that make every part matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        draw = torch.randn(parameter.shape, generator=generator)
        near_one = parameter.dim() == 1 and name.endswith("weight")
        scale = 0.3 if parameter.dim() == 1 else 1.5 / parameter.shape[-1] ** 0.5
        parameter.copy_(1 + 0.2 * draw if near_one else scale * draw)
