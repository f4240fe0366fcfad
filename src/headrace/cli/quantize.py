"""`headrace quantize`: convert a model to another weight type, as a new file or folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins
from msgspec.structs import asdict, replace

from headrace.bench.quality.gate import QualityGate
from headrace.bench.quality.own_text import TextOrder, own_text
from headrace.cli.compression import check_out, measured, print_quality, staged
from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, print_table, progress_bar, size, status
from headrace.cli.text_input import read_text
from headrace.compress.calibrate import CalibrationOrder
from headrace.compress.calibrate import calibrate as calibrate_checkpoint
from headrace.compress.grids import grid_for
from headrace.config.settings import Settings
from headrace.errors import QualityBelowBound, UsageError
from headrace.loading.export import Export
from headrace.loading.loader import usable_cores
from headrace.loading.options import engine_options
from headrace.loading.text_assets import served_name
from headrace.ops.value import Ints
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

--method gptq rounds the matrices of layers on a text, so that what one weight loses the next ones make up
for: a fraction of the loss of plain rounding, at the same size and speed. The text is --calibrate's, or what
the model writes itself; choose one like the traffic that the model is for. It works for int4 folders (groups
of 32), q4_0, q4_k and q5_k. A run that was killed goes on where it was.

What is written is measured against IN before it takes its place, and the figures go into its card and
headrace.json. --max-kl refuses what is worse: exit code 1, and nothing is written.

\b
Examples:
  headrace quantize mini mini.gguf --quantization q8_0
  headrace quantize Qwen/Qwen3-0.6B qwen3.gguf --quantization q4_k
  headrace quantize my-model.gguf ./my-model --quantization bf16
  headrace quantize Qwen/Qwen3-0.6B ./qwen3-int4 --quantization int4 --calibrate chats.txt
  headrace quantize mini mini-q4.gguf --quantization q4_0 --max-kl 0.02
"""
METHODS = ("rtn", "gptq")
WINDOW_TOKENS = 512
CALIBRATION_SEED = 1_000_003
"""Not that of `bench quality`: a model is not measured on the text that it was calibrated on."""
CALIBRATED_TYPES = ("int4", "q4_0", "q4_k", "q5_k")


@takes_settings("threads", "offline")
def command(
    source: Annotated[str, typer.Argument(metavar="IN", help="Folder, x.gguf, OWNER/NAME or bundled model.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="x.gguf, or a folder.")],
    quantization: Annotated[str, typer.Option(help="Weight type.", metavar="TYPE")],
    method: Annotated[
        str | None,
        typer.Option(help="rtn: to the nearest; gptq: on a text [default: rtn, gptq with --calibrate]."),
    ] = None,
    calibrate: Annotated[Path | None, typer.Option(help="The text for gptq, UTF-8.")] = None,
    windows: Annotated[int, typer.Option(min=1, max=4096, help="Windows of 512 tokens to read.")] = 32,
    max_kl: Annotated[
        float | None, typer.Option(min=0.0, help="Write nothing if the mean KL divergence is higher.")
    ] = None,
    measure_text: Annotated[
        Path | None, typer.Option(help="The text to measure on, UTF-8 [default: IN writes one].")
    ] = None,
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
    is_calibrated = _is_calibrated(method, calibrate, quantization.lower())
    text = None if calibrate is None else read_text(str(calibrate))
    order = QualityGate(
        reference=source,
        options=engine_options(settings),
        max_kl=max_kl,
        text=None if measure_text is None else read_text(str(measure_text)),
        text_name="" if measure_text is None else measure_text.name,
    )
    fetch(source, settings)
    path = resolve(source, offline=settings.offline)
    check_out(out, path, force=force)
    tokens = _windows(source, settings, text, windows) if is_calibrated else None
    work = out.with_name(f".{out.name}.calibration")
    made = {
        "from": served_name(source, path),
        "weights": quantization.lower(),
        "method": "gptq" if is_calibrated else "rtn",
        "calibrated on": "" if tokens is None else "its own text" if calibrate is None else calibrate.name,
    }
    with open_checkpoint(path) as checkpoint, staged(out) as staging:
        export = Export(
            checkpoint=checkpoint,
            path=path,
            name=served_name(source, path).removesuffix(".gguf"),
            type=quantization.lower(),
            threads=settings.threads or usable_cores(),
        )
        if tokens is not None:
            export = _calibrated(export, tokens, work, is_gguf=is_gguf)
        with progress_bar(f"writing {out.name}") as progress:
            lines = export.to_gguf(staging, progress) if is_gguf else export.to_folder(staging, progress)
        try:
            report = measured(staging, out, {key: value for key, value in made.items() if value}, order)
        except QualityBelowBound:
            shutil.rmtree(work, ignore_errors=True)
            raise
    shutil.rmtree(work, ignore_errors=True)
    if json:
        quality = None if report is None else to_builtins(report.measured)
        print_json({"out": str(out), "classes": [asdict(line) for line in lines], "quality": quality})
    else:
        _print(lines)
        print()
        print_quality(report)
        note(f"wrote {out}")
    if is_gguf and _is_only_for_headrace(out):
        note("only headrace reads this file: llama.cpp has no name for how this model's tokenizer cuts texts")


def _is_calibrated(method: str | None, calibrate: Path | None, type: str) -> bool:
    if method not in (None, *METHODS):
        raise UsageError(f"--method is {method}: use {' or '.join(METHODS)}", param="method")
    if method == "rtn" and calibrate is not None:
        raise UsageError("--method rtn reads no text: leave --calibrate out", param="calibrate")
    if method == "rtn" or (method is None and calibrate is None):
        return False
    if type not in CALIBRATED_TYPES:
        raise UsageError(
            f"--quantization {type} is not calibrated: use {', '.join(CALIBRATED_TYPES)}, or --method rtn",
            param="method",
        )
    return True


def _windows(source: str, settings: Settings, text: str | None, most: int) -> Ints:
    """Tokens of the calibration text [N, L]; without one, of what the model writes itself."""
    order = TextOrder(windows=most, length=WINDOW_TOKENS, continued=0, text=text, seed=CALIBRATION_SEED)
    with status() as show:
        return own_text(
            source, replace(engine_options(settings), quantization="keep"), order, show
        ).windows.tokens


def _calibrated(export: Export, tokens: Ints, work: Path, *, is_gguf: bool) -> Export:
    order = CalibrationOrder(
        windows=tokens,
        grid_of=grid_for(export := replace(export, calibrated=True), is_gguf=is_gguf),
        type=f"{'gguf' if is_gguf else 'folder'} {export.type}",
        work=work,
    )
    with progress_bar("calibrating", unit="matrices") as progress:
        found = calibrate_checkpoint(export.checkpoint, order, progress)
    if found.left:
        more = ", …" if found.left[1:] else ""
        note(
            f"{len(found.left)} matrices have no inputs of their own, such as those of experts, and are"
            f" rounded to the nearest: {found.left[0]}{more}"
        )
    return replace(export, ready=found.ready)


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
