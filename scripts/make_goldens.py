"""Write tests/goldens: tiny random checkpoints, and the outputs of `transformers` for them.

Needs torch and transformers (`pip install headrace[train]`); the tests that read the goldens need neither.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from golden_configs import CONFIGS, ENCODERS
from golden_families import Settings
from golden_references import build, named_weights

PROMPT_TOKENS = 24
GREEDY_TOKENS = 64
# A greedy token is reliable only if the second-best logit is clearly lower, relative to the largest
# logit.
SMALLEST_GAP = 1e-3
MAX_SEEDS = 200

# Tensors that `transformers` renames: its name -> the name in checkpoints.
NAMES_IN_FILES = {"gpt_neox": ("lm_head.", "embed_out.")}
# An expert's gate, up and down projections as checkpoints name them; `transformers` stores all experts
# in two tensors.
EXPERTS = {
    "mixtral": ("mlp.", "block_sparse_moe.", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp.", "mlp.", ("gate_proj", "up_proj", "down_proj")),
    "deepseek_v2": ("mlp.", "mlp.", ("gate_proj", "up_proj", "down_proj")),
    "deepseek_v3": ("mlp.", "mlp.", ("gate_proj", "up_proj", "down_proj")),
}
# Models that count positions without padding tokens, which their prompts must not hold.
SKIPS_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet")
TABLES = ("word_embeddings", "wte", "embed_in")


def learned(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The contents of a checkpoint: the parameters, and the biases that balance DeepSeek's experts."""
    yield from model.named_parameters()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name.endswith("correction_bias"))


def fill(model: PreTrainedModel, generator: torch.Generator) -> None:
    """Random weights that keep activations near 1 and make every part matter, including biases and norms."""
    # Gemma multiplies embeddings by it
    table_scale = float(getattr(model.get_input_embeddings(), "embed_scale", 1.0))
    for name, parameter in learned(model):
        draw = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            value = 0.3 * draw
        elif name.endswith("A_log"):  # some heads remember for long, some for a few tokens
            value = draw - 2
        elif parameter.dim() == 1:
            value = 1 + 0.2 * draw
        elif "embed_tokens" in name:
            value = draw / table_scale
        elif "wpe" in name:  # prevents GPT-2 from repeating itself
            value = 3 * draw
        elif any(table in name for table in TABLES):  # small, because tied tables are also output matrices
            value = 0.1 * draw
        elif "lm_head" in name or "embed_out" in name:
            value = 3 * draw / parameter.shape[1] ** 0.5
        elif name.endswith(("mlp.gate.weight", "mlp.router.weight")):  # a router: make its choices clear
            value = 4 * draw / parameter.shape[1] ** 0.5
        else:
            value = 1.5 * draw / parameter.shape[-1] ** 0.5
        parameter.data.copy_(value)


@torch.no_grad()
def greedy(model: PreTrainedModel, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Logits of the prompt, the greedy tokens after it, and the smallest relative gap to a runner-up.

    Every step recomputes the whole sequence, so no cache of `transformers` is involved.
    """
    tokens, smallest_gap = prompt, float("inf")
    prompt_logits = model(prompt[None], use_cache=False).logits[0]
    for _ in range(GREEDY_TOKENS):
        last = model(tokens[None], use_cache=False).logits[0, -1]
        best = last.topk(2).values
        smallest_gap = min(smallest_gap, ((best[0] - best[1]) / last.abs().max()).item())
        tokens = torch.cat([tokens, last.argmax()[None]])
    return prompt_logits, tokens[len(prompt) :], smallest_gap


def stored_tensors(model: PreTrainedModel, model_type: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's parameters with the names and shapes of checkpoints of its type."""
    new, old = NAMES_IN_FILES.get(model_type, ("", ""))
    block, block_in_files, (gate, up, down) = EXPERTS.get(model_type, ("", "", ("", "", "")))
    for name, parameter in learned(model):
        tensor, name = parameter.detach(), name.replace(new, old)
        at, fused, kind = name.partition("mlp.experts.")
        if not fused or model_type not in EXPERTS:
            is_router = name.endswith("mlp.gate.weight")
            yield name.replace(block, block_in_files) if is_router else name, tensor
            continue
        at += block_in_files
        for e, expert in enumerate(tensor):
            if kind == "down_proj":
                yield f"{at}experts.{e}.{down}.weight", expert
            else:
                for part, rows in zip((gate, up), expert.chunk(2), strict=True):
                    yield f"{at}experts.{e}.{part}.weight", rows


def make(folder: Path, settings: Settings) -> str:
    """Write one folder; returns a summary line. Tries seeds until no greedy step is nearly tied."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    stored = {"float32": torch.float32, "bfloat16": torch.bfloat16}[str(settings["dtype"])]
    config = AutoConfig.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    for seed in range(MAX_SEEDS):
        generator = torch.Generator().manual_seed(seed)
        fill(model, generator)
        for parameter in model.parameters():  # compute with exactly the stored values
            parameter.data.copy_(parameter.data.to(stored).float())
        prompt = torch.randint(0, config.vocab_size, (PROMPT_TOKENS,), generator=generator)
        logits, tokens, gap = greedy(model, prompt)
        # A run that soon repeats itself tests little.
        if gap >= SMALLEST_GAP and len(tokens.unique()) >= GREEDY_TOKENS // 4:
            break
    else:
        raise SystemExit(f"{folder.name}: no seed below {MAX_SEEDS} gave well-separated greedy tokens")
    weights = {
        name: tensor.to(stored).contiguous()
        for name, tensor in stored_tensors(model, str(settings["model_type"]))
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    golden = {"prompt": prompt.int(), "logits": logits.contiguous(), "greedy": tokens.int()}
    # One entry: the order of several in the file would change from run to run.
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}, seed {seed}"
    save_file(golden, folder / "golden.safetensors", metadata={"made_with": made_with})
    for file in folder.iterdir():
        file.chmod(0o644)  # save_file makes its files readable only by their owner
    return f"{folder.name}: seed {seed}, gap {gap:.1e}, {len(tokens.unique())} different tokens"


@torch.no_grad()
def make_encoder(folder: Path, settings: Settings) -> str:
    """Write one folder of a model without an output matrix; returns a summary line. The second half of
    the tokens is the second text of a pair, if the model has token types.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    model, config = build(settings)
    generator = torch.Generator().manual_seed(0)
    fill(model, generator)
    prompt = torch.randint(0, config.vocab_size, (PROMPT_TOKENS,), generator=generator)
    if settings["model_type"] in SKIPS_PADDING:
        prompt[prompt == config.pad_token_id] += 1
    types = (torch.arange(PROMPT_TOKENS) >= PROMPT_TOKENS // 2).long()
    more = {"token_type_ids": types[None]} if getattr(config, "type_vocab_size", 0) > 1 else {}
    states = model(prompt[None], attention_mask=torch.ones(1, PROMPT_TOKENS), **more).last_hidden_state[0]
    weights = {name: p for name, p in named_weights(model, settings).items() if "pooler" not in name}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}, seed 0"
    golden = {"prompt": prompt.int(), "types": types.int(), "states": states.contiguous()}
    save_file(golden, folder / "golden.safetensors", metadata={"made_with": made_with})
    for file in folder.iterdir():
        file.chmod(0o644)  # save_file makes its files readable only by their owner
    return f"{folder.name}: states of {states.abs().mean():.2f} on average"


def main() -> int:
    """Write all goldens, or those named."""
    parser = argparse.ArgumentParser(description="Write the golden checkpoints of the tests.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which of {', '.join(CONFIGS | ENCODERS)}(default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests" / "goldens")
    options = parser.parse_args()
    known = CONFIGS | ENCODERS
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"unknown goldens: {', '.join(unknown)}; known: {', '.join(known)}")
    for name in options.names or known:
        encodes = name in ENCODERS
        line = (
            make_encoder(options.out / "encoders" / name, known[name])
            if encodes
            else make(options.out / name, known[name])
        )
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
