"""Tiny GLiNER checkpoints with random weights, and the published computation of their scores in torch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import AutoConfig, AutoModel

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
MARKS = ("<<ENT>>", "<<SEP>>")
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {**SIZES, "intermediate_size": 48, "max_position_embeddings": 200, "type_vocab_size": 2},
    "modernbert": {
        **SIZES,
        "intermediate_size": 48,
        "max_position_embeddings": 200,
        "local_attention": 16,
        "pad_token_id": 0,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
}
WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")


def tokenizer_of(kind: str) -> Tokenizer:
    """Word pieces of single letters in lower case, or single bytes; with GLiNER's two marks."""
    if kind == "modernbert":
        letters = sorted(ByteLevel.alphabet())
        tokenizer = Tokenizer(BPE(vocab={t: i for i, t in enumerate([*SPECIAL, *letters])}, merges=[]))
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    else:
        letters = [*"abcdefghijklmnopqrstuvwxyz0123456789.,-_@", "john", "berlin", "person"]
        pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
        tokenizer = Tokenizer(WordPiece({t: i for i, t in enumerate(pieces)}, unk_token="[UNK]"))
        tokenizer.normalizer = BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in SPECIAL])
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    return tokenizer


def projection(inputs: int, outputs: int) -> nn.Sequential:
    """Two layers, four times as wide in between."""
    return nn.Sequential(
        nn.Linear(inputs, 4 * outputs), nn.ReLU(), nn.Dropout(0), nn.Linear(4 * outputs, outputs)
    )


def named(**parts: nn.Module) -> nn.Module:
    """A module with these parts."""
    module = nn.Module()
    for name, part in parts.items():
        module.add_module(name, part)
    return module


class Reference(nn.Module):
    """GLiNER as published, with the tensor names of its checkpoints; `settings` is its gliner_config.json."""

    def __init__(self, kind: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings, n = settings, settings["hidden_size"]
        self.tokenizer = tokenizer_of(kind)
        encoder: Any = AutoModel.from_config(AutoConfig.for_model(**settings["encoder_config"]))
        self.token_rep_layer: Any = named(bert_layer=named(model=encoder))
        if n != encoder.config.hidden_size:
            self.token_rep_layer.add_module("projection", nn.Linear(encoder.config.hidden_size, n))
        if settings["num_rnn_layers"]:
            lstm = nn.LSTM(n, n // 2, settings["num_rnn_layers"], bidirectional=True, batch_first=True)
            self.rnn: Any = named(lstm=lstm)
        if settings["span_mode"] == "markerV0":
            layers = {"project_start": projection(n, n), "project_end": projection(n, n)}
            self.span_rep_layer: Any = named(span_rep_layer=named(**layers, out_project=projection(2 * n, n)))
            self.prompt_rep_layer = projection(n, n)
        else:
            mlp = nn.Sequential(nn.Linear(3 * n, 4 * n), nn.Dropout(0), nn.ReLU(), nn.Linear(4 * n, 3))
            heads = {"proj_token": nn.Linear(n, 2 * n), "proj_label": nn.Linear(n, 2 * n)}
            self.scorer: Any = named(**heads, out_mlp=mlp)
        self.eval()

    @torch.no_grad()
    def spread_scores(self) -> None:
        """Scale the last layer, so that scores are neither all alike nor all 0 or 1."""
        scores = torch.tensor(
            list(self.span_scores("John Miller lives in Berlin", ["person", "year"]).values())
        )
        last: Any = self.prompt_rep_layer[3] if hasattr(self, "prompt_rep_layer") else self.scorer.out_mlp[3]
        by = 3 / scores.double().logit().abs().max().float()
        for parameter in last.parameters():
            parameter.mul_(by)

    def states(self, text: str, labels: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """States of the words and of the labels."""
        words = WORD.findall(text)
        written = [part for label in labels for part in (MARKS[0], label)]
        encoding = self.tokenizer.encode([*written, MARKS[1], *words], is_pretokenized=True)
        ids = torch.tensor([encoding.ids])
        states = self.token_rep_layer.bert_layer.model(ids).last_hidden_state[0]
        if hasattr(self.token_rep_layer, "projection"):
            states = self.token_rep_layer.projection(states)
        begin = len(written) + 1
        places = [[i for i, w in enumerate(encoding.word_ids) if w == begin + k] for k in range(len(words))]
        rows = torch.stack([self.pooled(states[place]) for place in places])[None]
        if hasattr(self, "rnn"):
            rows = self.rnn.lstm(rows)[0]
        marks = torch.tensor(
            [i for i, one in enumerate(encoding.ids) if one == self.tokenizer.token_to_id(MARKS[0])]
        )
        return rows[0], states[marks if self.settings["embed_ent_token"] else marks + 1]

    def pooled(self, subtokens: torch.Tensor) -> torch.Tensor:
        kind = self.settings["subtoken_pooling"]
        if not len(subtokens):
            return torch.zeros(subtokens.shape[1])
        if kind in ("first", "last"):
            return subtokens[0 if kind == "first" else -1]
        return subtokens.mean(0) if kind == "mean" else subtokens.amax(0)

    @torch.no_grad()
    def span_scores(self, text: str, labels: Sequence[str]) -> dict[tuple[int, int, int], float]:
        """By first word, last word and label: the score of every span that may be an entity."""
        words, prompts = self.states(text, labels)
        if self.settings["span_mode"] != "markerV0":
            return self.token_scores(words, prompts)
        layer = self.span_rep_layer.span_rep_layer
        starts, ends, prompts = (
            layer.project_start(words),
            layer.project_end(words),
            self.prompt_rep_layer(prompts),
        )
        found: dict[tuple[int, int, int], float] = {}
        for first in range(len(words)):
            for last in range(first, min(len(words), first + self.settings["max_width"])):
                span = layer.out_project(torch.cat([starts[first], ends[last]]).relu())
                for label, score in enumerate((prompts @ span).sigmoid().tolist()):
                    found[first, last, label] = score
        return found

    def token_scores(self, words: torch.Tensor, prompts: torch.Tensor) -> dict[tuple[int, int, int], float]:
        """The least of the start, end and inside scores."""
        n, count = words.shape[1], len(words)
        word, label = self.scorer.proj_token(words), self.scorer.proj_label(prompts)
        found: dict[tuple[int, int, int], float] = {}
        for index, one in enumerate(label):
            both = torch.cat([word[:, :n], one[:n].expand(count, n), word[:, n:] * one[n:]], dim=1)
            start, end, inside = self.scorer.out_mlp(both).sigmoid().T.tolist()
            for first in range(count):
                for last in range(first, count):
                    found[first, last, index] = min(start[first], end[last], *inside[first : last + 1])
        return found


def gliner_folder(folder: Path, kind: str = "bert", seed: int = 0, **changed: Any) -> tuple[Path, Reference]:
    """A checkpoint of a kind of encoder, with fields of its settings changed; and its reference."""
    torch.manual_seed(seed)
    size = tokenizer_of(kind).get_vocab_size()
    settings = {
        "model_type": "gliner_uni_encoder_span",
        "model_name": "tiny",
        "hidden_size": 24,
        "max_width": 4,
        "max_len": 40,
        "num_rnn_layers": 1,
        "span_mode": "markerV0",
        "subtoken_pooling": "first",
        "words_splitter_type": "whitespace",
        "embed_ent_token": True,
        "ent_token": MARKS[0],
        "sep_token": MARKS[1],
        "class_token_index": size - 2,
        "vocab_size": size,
        "dropout": 0.0,
        "encoder_config": {"model_type": kind, "vocab_size": size, **ENCODERS[kind]},
        **changed,
    }
    reference = Reference(kind, settings)
    reference.spread_scores()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gliner_config.json").write_text(json.dumps(settings))
    save_file(
        {name: one.contiguous() for name, one in reference.state_dict().items()}, folder / "model.safetensors"
    )
    reference.tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": 200,
                "cls_token": "[CLS]",
                "sep_token": "[SEP]",
                "pad_token": "[PAD]",
                "unk_token": "[UNK]",
            }
        )
    )
    return folder, reference
