"""`headrace quantize`: convert a model to another weight type, as a new file or folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import asdict

from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, print_table, progress_bar, size
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.loading.export import Export
from headrace.loading.loader import usable_cores
from headrace.loading.text_assets import served_name
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.gguf import export as gguf_export
from headrace.weights.gguf.pre_tokenizers import OWN
from headrace.weights.hub.resolver import resolve
from headrace.weights.safetensors import export as safetensors_export
from headrace.weights.tensor_output import ClassReport

HELP = f"""Convert a model to another weight type. Writes a GGUF file if OUT ends in .gguf, else a folder.

GGUF: {", ".join(gguf_export.FILE_TYPES)}. Rows that do not fit a type become q8_0 or f16, as the table at the
end shows. Folder (safetensors): {", ".join(safetensors_export.TYPES)};
integer types in the format of compressed-tensors. Tokenizer, chat template and config are copied.

\b
Examples:
  headrace quantize mini mini.gguf --quantization q8_0
  headrace quantize Qwen/Qwen3-0.6B qwen3.gguf --quantization q4_k
  headrace quantize my-model.gguf ./my-model --quantization bf16
"""


@takes_settings("threads", "offline")
def command(
    source: Annotated[str, typer.Argument(metavar="IN", help="Folder, x.gguf, OWNER/NAME or bundled model.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="x.gguf, or a folder.")],
    quantization: Annotated[str, typer.Option(help="Weight type.", metavar="TYPE")],
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Convert; see HELP."""
    out = out.expanduser().absolute()
    is_gguf = out.suffix == ".gguf"
    known = tuple(gguf_export.FILE_TYPES) if is_gguf else safetensors_export.TYPES
    if quantization.lower() not in known:
        kind = "a GGUF file" if is_gguf else "a folder"
        raise UsageError(f"--quantization {quantization} cannot be written to {kind}: use {', '.join(known)}")
    if out.exists() and not force:
        raise UsageError(f"{out} already exists: choose another name, or replace it with --force")
    fetch(source, settings)
    path = resolve(source, offline=settings.offline)
    with open_checkpoint(path) as checkpoint, progress_bar(f"writing {out.name}") as progress:
        export = Export(
            checkpoint=checkpoint,
            path=path,
            name=served_name(source, path).removesuffix(".gguf"),
            type=quantization.lower(),
            threads=settings.threads or usable_cores(),
        )
        lines = export.to_gguf(out, progress) if is_gguf else export.to_folder(out, progress)
    if json:
        print_json({"out": str(out), "classes": [asdict(line) for line in lines]})
    else:
        _print(lines)
        note(f"wrote {out}")
    if is_gguf and _is_only_for_headrace(out):
        note("only headrace reads this file: llama.cpp has no name for how this model's tokenizer cuts texts")


def _is_only_for_headrace(file: Path) -> bool:
    with open_checkpoint(file) as written:
        return (written.metadata or {}).get("tokenizer.ggml.pre") == OWN


def _print(lines: list[ClassReport]) -> None:
    header = ("CLASS", "TYPE", "TENSORS", "BEFORE", "AFTER", "LOSS", "WORST", "")
    rows = [
        (
            line.kind,
            line.type,
            f"{line.tensors:,}",
            size(line.bytes_before),
            size(line.bytes_after),
            f"{line.loss:.3%}",
            f"{line.worst:.3%}",
            line.worst_tensor,
        )
        for line in lines
    ]
    before, after = (
        sum(numbers) for numbers in zip(*((x.bytes_before, x.bytes_after) for x in lines), strict=True)
    )
    total = ("all", "", f"{sum(line.tensors for line in lines):,}", size(before), size(after), "", "", "")
    print_table([*rows, total], header=header)
