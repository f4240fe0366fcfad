"""The page of models and formats: what the registries of the package hold."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

from page_text import code, first_sentence, generated, table

from headrace.chat.tool_formats.registry import FAMILIES as TOOL_FORMATS
from headrace.models.registry import encoder_types, known_model_types
from headrace.weights.formats import FORMATS, pack
from headrace.weights.gguf import families
from headrace.weights.gguf.export import FILE_TYPES
from headrace.weights.gguf.pre_tokenizers import PRE_TOKENIZERS
from headrace.weights.hub.bundled import list_bundled
from headrace.weights.quant_types import BY_NAME, READABLE, ROTATED, SCALED
from headrace.weights.quantized import checkpoint
from headrace.weights.safetensors.export import TYPES
from headrace.weights.safetensors.plain_names import WRAPPED

ARCHITECTURES = """The file `models/<model_type>.py` serves checkpoints whose `config.json` has this
`model_type`. Every architecture is held to logits of its original implementation, on all executors. An
unknown `model_type` is an error that names the nearest known one."""
CONFIGS = """Fields of `config.json` that a file leaves out have the default of the config class in
`transformers` 5, under either of a field's two names. A field of another type, and two names with different
values, are errors that name the field. The class in `architectures` may be one that generates
(`...ForCausalLM`), a base model (`...Model`), or of encoders one that classifies texts or tokens
(`...ForSequenceClassification`, `...ForTokenClassification`) or has the head of its training
(`...ForMaskedLM`, which a warning names unless sparse vectors use it); others are refused. Tensors that the
model would not read are refused by name, too.
{wrapped} is read as its text model: images are not."""
RUN = """`--quantization` (or `LLM(quantization=...)`) chooses the format to run in. `auto` and `keep` run a
checkpoint as it is stored; `bf16`, `int8` and `int4` convert it while it loads."""
GGUF = "Versions 2 and 3, little endian, one file or a split one. Architectures, by `general.architecture`:"
STORED = "Tensor types that run as they are stored, without loss. Bits are those of one weight in the file."
SCHEMES = """Quantized safetensors checkpoints, by `quant_method` in `config.json`. They run without loss."""
TOOLS = """The family is recognized by markers in the chat template; `--tool-format NAME` overrides it."""


def page() -> str:
    """The whole page."""
    return generated(
        "Models and formats",
        "the registries: models/, weights/, chat/tool_formats/",
        "## Bundled models",
        table(["name", "what it is for"], _bundled()),
        "How good they are, and what they learned from: [Bundled models](../start/bundled.md).",
        "## Architectures",
        ARCHITECTURES,
        table(["model_type", "kind", "description"], _architectures()),
        CONFIGS.format(wrapped=", ".join(map(code, WRAPPED))),
        "## Formats to run in",
        RUN,
        table(["format", "bits per weight", "layout"], _formats()),
        "## GGUF",
        GGUF,
        ", ".join(map(code, _gguf_architectures())) + ".",
        "How texts are cut, by `tokenizer.ggml.pre`: " + ", ".join(map(code, PRE_TOKENIZERS)) + ".",
        STORED,
        table(["type", "bits", "block"], [_type(kind.name) for kind in READABLE]),
        "Known but not readable (the error names the nearest that is): "
        + ", ".join(code(name) for name, kind in sorted(BY_NAME.items()) if kind.dequantize is None)
        + ".",
        "## Quantized safetensors",
        SCHEMES,
        table(["quant_method", "description"], _schemes()),
        "In memory their numbers are "
        + ", ".join(code(kind.name) for kind in SCALED)
        + ", one scale for 16 or 32 weights; those of Headrace's own folders are "
        + ", ".join(code(name) for name in ROTATED)
        + ", which are rotated.",
        "## Formats to write",
        "`headrace quantize` writes GGUF with "
        + ", ".join(map(code, FILE_TYPES))
        + ", and safetensors folders with "
        + ", ".join(map(code, TYPES))
        + ".",
        "## Syntax of tool calls",
        TOOLS,
        ", ".join(map(code, TOOL_FORMATS)) + ".",
    )


def _bundled() -> list[tuple[str, str]]:
    return [(code(name), _purpose(folder)) for name, folder in list_bundled().items()]


def _purpose(folder: Path) -> str:
    """The first sentence of a model's card."""
    _, _, text = (folder / "README.md").read_text().partition("\n# ")
    return first_sentence(text.partition("\n")[2])


def _architectures() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name in known_model_types():
        module = importlib.import_module(f"headrace.models.{name}")
        kinds = [
            kind for kind, part in (("decoder", "define"), ("encoder", "encode")) if hasattr(module, part)
        ]
        rows.append((code(name), ", ".join(kinds), first_sentence(module.__doc__ or "")))
    assert {row[0] for row in rows} >= {code(name) for name in encoder_types()}
    return rows


def _formats() -> list[tuple[str, ...]]:
    import numpy as np

    rows: list[tuple[str, ...]] = []
    for name in FORMATS:
        module = importlib.import_module(f"headrace.weights.formats.{name}")
        bits = 8 * pack(name, np.zeros((512, 512), np.float32)).nbytes / 512**2
        rows.append((code(name), f"{bits:.3g}", first_sentence(inspect.getdoc(module) or "")))
    return rows


def _gguf_architectures() -> list[str]:
    return sorted({known.name for known in families._ALL})  # pyright: ignore[reportPrivateUsage]


def _type(name: str) -> tuple[str, ...]:
    kind = BY_NAME[name]
    return code(name), f"{8 * kind.block_bytes / kind.block_size:.4g}", f"{kind.block_size}"


def _schemes() -> list[tuple[str, ...]]:
    schemes = checkpoint._SCHEMES  # pyright: ignore[reportPrivateUsage]
    return [
        (code(name), first_sentence(importlib.import_module(find.__module__).__doc__ or ""))
        for name, find in schemes.items()
    ]
