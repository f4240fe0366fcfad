"""A student as a torch model of transformers, and as the folder that it becomes."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from headrace.errors import UnsupportedModel, UsageError

_CARRIED = (".json", ".jinja", ".txt", ".md", ".model")
_NOT_CARRIED = ("model.safetensors.index.json", "headrace.json")


def load_student(folder: Path, *, encoder: bool = False) -> nn.Module:
    """In float32. UnsupportedModel where transformers cannot load it as it is stored."""
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder.name} is no folder with config.json: a student is a folder of safetensors")
    if "quantization_config" in json.loads((folder / "config.json").read_text(encoding="utf-8")):
        raise UnsupportedModel(f"{folder.name} has rounded weights, which cannot learn: start from bf16 ones")
    kind: Any = transformers.AutoModel if encoder else transformers.AutoModelForCausalLM
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        model, info = kind.from_pretrained(
            folder,
            dtype=torch.float32,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UnsupportedModel(f"transformers cannot load {folder.name}: {str(error)[:300]}") from None
    if info["missing_keys"] or info["mismatched_keys"]:
        raise UnsupportedModel(
            f"transformers finds no weights for {len(info['missing_keys'])} tensors of {folder.name}, such as"
            f" {sorted(map(str, info['missing_keys']))[:1]}"
        )
    return model.eval()  # no dropout: each step is a function of its batch


def write_student(model: Any, source: Path, out: Path) -> None:
    """Its weights in the type of `source`, with the config, tokenizer and template of that."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    name = config.get("dtype", config.get("torch_dtype", "bfloat16"))
    kind = {"float32": torch.float32, "float16": torch.float16}.get(name, torch.bfloat16)
    state = {key: value.detach().to(kind).contiguous() for key, value in model.state_dict().items()}
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out, state_dict=state)
    for file in source.rglob("*"):
        place = file.relative_to(source)
        is_text = file.suffix in _CARRIED or file.name.startswith("LICENSE")
        if file.is_file() and is_text and len(place.parts) <= 2 and file.name not in _NOT_CARRIED:
            (out / place).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, out / place)
    for file in out.glob("*.safetensors"):
        file.chmod(0o644)  # save_file makes it readable only by its owner
