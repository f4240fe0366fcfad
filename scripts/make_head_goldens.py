"""Write tests/goldens/heads: tiny random encoders with a head, and what `transformers` computes with it.

Needs torch and transformers (`pip install headrace[train]`); the tests that read the goldens need neither.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from golden_configs import CONFIGS, ENCODERS
from golden_families import LLAMA, QWEN3, Settings
from golden_references import build, named_weights
from make_goldens import PROMPT_TOKENS, SKIPS_PADDING, fill

LABELS = {"id2label": {"0": "low", "1": "mid", "2": "high"}}
BERT, MODERNBERT = ENCODERS["bert"], ENCODERS["modernbert"]
# Encoders whose three heads are classes of these names.
_THREE = {
    "albert": "Albert",
    "nomic_native": "NomicBert",
    "gte": "Gte",
    "gte_ntk": "New",
    "jina_v3": "XLMRoberta",
    "jina_v3_native": "JinaEmbeddingsV3",
    "xlm_roberta": "XLMRoberta",
    "xlm_roberta_xl": "XLMRobertaXL",
    "distilbert": "DistilBert",
    "mpnet": "MPNet",
    "electra": "Electra",
    "deberta_v3": "DebertaV2",
}
_NOT_SPARSE = ("electra", "deberta_v3")  # models of these types make no sparse vectors


_SEQUENCE = "ForSequenceClassification"


def _with(settings: Settings, name: str, **more: object) -> Settings:
    return settings | {"architectures": [name]} | more


HEADS: dict[str, Settings] = {
    "bert_classify": _with(BERT, "BertForSequenceClassification", **LABELS),
    "bert_tokens": _with(BERT, "BertForTokenClassification", **LABELS),
    "bert_masked_lm": _with(BERT, "BertForMaskedLM", tie_word_embeddings=True),
    "modernbert_classify": _with(
        MODERNBERT, "ModernBertForSequenceClassification", classifier_pooling="mean", **LABELS
    ),
    "modernbert_cls": _with(
        MODERNBERT,
        "ModernBertForSequenceClassification",
        classifier_pooling="cls",
        classifier_bias=True,
        **LABELS,
    ),
    "modernbert_tokens": _with(MODERNBERT, "ModernBertForTokenClassification", **LABELS),
    "modernbert_masked_lm": _with(MODERNBERT, "ModernBertForMaskedLM", tie_word_embeddings=True),
    "llama_classify": _with(
        LLAMA, "LlamaForSequenceClassification", rope_theta=1e4, pad_token_id=127, **LABELS
    ),
    "llama_tokens": _with(LLAMA, "LlamaForTokenClassification", rope_theta=1e4, **LABELS),
    **{
        f"{name}_classify": _with(
            CONFIGS[name], CONFIGS[name]["architectures"][0].replace("ForCausalLM", _SEQUENCE), **LABELS
        )
        for name in ("qwen2", "mistral", "gemma2", "gemma3")
    },
    **{
        f"{name}_{head}": _with(ENCODERS[name], f"{named}For{task}", **more)
        for name, named in _THREE.items()
        for head, task, more in (
            ("classify", "SequenceClassification", LABELS),
            ("tokens", "TokenClassification", LABELS),
            ("masked_lm", "MaskedLM", {"tie_word_embeddings": True}),
        )
        if head != "masked_lm" or name not in _NOT_SPARSE
    },
    "jina_absolute_classify": _with(
        ENCODERS["jina_absolute"], "XLMRobertaForSequenceClassification", id2label={"0": "LABEL_0"}
    ),
    "jina_v2_classify": _with(ENCODERS["jina_v2"], "JinaBertForSequenceClassification", **LABELS),
    "t5_tokens": _with(ENCODERS["t5"], "T5ForTokenClassification", **LABELS),
    "qwen3_reward": _with(
        QWEN3, "Qwen3ForSequenceClassification", pad_token_id=127, id2label={"0": "LABEL_0"}
    ),
}


@torch.no_grad()
def make(folder: Path, settings: Settings) -> str:
    """Write one folder; returns a summary line. The second half of the tokens is the second text of a pair,
    if the model has token types."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    [name] = settings["architectures"]
    model, config = build(settings)
    generator = torch.Generator().manual_seed(0)
    fill(model, generator)
    prompt = torch.randint(0, config.vocab_size - 1, (PROMPT_TOKENS,), generator=generator)
    if settings["model_type"] in SKIPS_PADDING:
        prompt[prompt == config.pad_token_id] += 1
    types = (torch.arange(PROMPT_TOKENS) >= PROMPT_TOKENS // 2).long()
    more = {"token_type_ids": types[None]} if getattr(config, "type_vocab_size", 0) > 1 else {}
    logits = model(prompt[None], attention_mask=torch.ones(1, PROMPT_TOKENS), **more).logits
    rows = logits if "Sequence" in name else logits[0]
    if "MaskedLM" in name:  # SPLADE: Formal et al. 2021
        rows = torch.log1p(torch.relu(rows)).amax(0, keepdim=True)
    tied = set(model.all_tied_weights_keys) if "MaskedLM" in name else set()
    weights = named_weights(model, settings, tied)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}, seed 0"
    golden = {"prompt": prompt.int(), "types": types.int(), "rows": rows.contiguous()}
    save_file(golden, folder / "golden.safetensors", metadata={"made_with": made_with})
    for file in folder.iterdir():
        file.chmod(0o644)  # save_file makes its files readable only by their owner
    return f"{folder.name}: rows {tuple(rows.shape)}, {rows.abs().mean():.2f} on average"


def main() -> int:
    """Write all, or those named."""
    out = Path(__file__).parent.parent / "tests" / "goldens" / "heads"
    for name in sys.argv[1:] or HEADS:
        print(make(out / name, HEADS[name]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
