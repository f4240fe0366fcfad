"""`headrace quantize`: convert a model to another weight type, as a new file or folder."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins
from msgspec.structs import asdict, replace

from headrace.bench.quality.gate import QualityGate
from headrace.bench.quality.kv_calibration import calibrate_kv
from headrace.cli.compression import (
    MaxKl,
    MeasureText,
    calibration_windows,
    check_out,
    measured,
    measured_kv,
    print_quality,
    staged,
)
from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, print_table, progress_bar, size
from headrace.cli.text_input import read_text
from headrace.compress.allocation import MatrixCandidate, choose, losses_of, mean_bits
from headrace.compress.awq import awq
from headrace.compress.calibrate import CalibrationOrder, observe_inputs
from headrace.compress.calibrate import calibrate as calibrate_checkpoint
from headrace.compress.gptq import Moments, weighted
from headrace.compress.grids import RotatedInt4, grid_for
from headrace.compress.imatrix import read_imatrix, write_imatrix
from headrace.compress.kv_bits import choices_for
from headrace.compress.own_order import in_own_order
from headrace.config.settings import Settings
from headrace.errors import HeadraceError, QualityBelowBound, UsageError
from headrace.loading.export import Export
from headrace.loading.loader import usable_cores
from headrace.loading.model_record import ModelRecord, write_record
from headrace.loading.options import engine_options
from headrace.loading.text_assets import served_name
from headrace.ops.value import Array, Ints
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.gguf import export as gguf_export
from headrace.weights.gguf.pre_tokenizers import OWN
from headrace.weights.hub.resolver import resolve
from headrace.weights.quant_types.block_type import Bytes, Floats
from headrace.weights.safetensors import export as safetensors_export
from headrace.weights.tensor_output import ClassReport, Converter

HELP = f"""Convert a model to another weight type. Writes a GGUF file if OUT ends in .gguf, else a folder.

GGUF: {", ".join(gguf_export.FILE_TYPES)}. Rows that do not fit a type become q8_0 or f16, as the table at the
end shows. Folder: {", ".join(safetensors_export.TYPES)}.
int4 is Headrace's own, what loading makes, and only headrace reads it; other integers have the format of
compressed-tensors. Tokenizer, chat template and config are copied.

--method gptq calibrates the rounding on a text, so that the next weights compensate the error of one: a
fraction of the loss of plain rounding, at the same size and speed. The text is --calibrate FILE, or the
model writes it; choose one like the model's later traffic. It works for folders of integers (w4a16 with
groups of 32), q4_0, q4_k, q5_k and q6_k. --method awq scales inputs instead, so that rounding errs less on
large ones: it usually loses more than gptq, and works for the same types but int4. A run that was killed
resumes.

The result is measured against IN before it is put in place, and the figures go into its card and
headrace.json. With --max-kl a worse result is not written: exit code 1.

--kv-balance finds factors on the same text that make quantized keys lose less (--kv-cache-dtype int8, k8v4,
int4 and int3); --kv-bits 6 also which layers keep 4 and which 8 bits (--kv-cache-dtype mixed), below 4 also
which keep 3. Both go into headrace.json with what they lose, the weights stay as they are.

\b
Examples:
  headrace quantize mini mini.gguf --quantization q8_0
  headrace quantize Qwen/Qwen3-0.6B qwen3.gguf --quantization q4_k
  headrace quantize my-model.gguf ./my-model --quantization bf16
  headrace quantize Qwen/Qwen3-0.6B ./qwen3-int4 --quantization int4 --calibrate chats.txt
  headrace quantize mini mini-q4.gguf --quantization q4_0 --max-kl 0.02
"""
METHODS = ("rtn", "gptq", "awq")
WINDOWS, WINDOW_TOKENS = 32, 512
CALIBRATED_TYPES = ("int4", "w4a16", "int8", "w8a16", "w8a8", "q4_0", "q4_k", "q5_k", "q6_k")


@takes_settings("threads", "offline")
def command(
    source: Annotated[str, typer.Argument(metavar="IN", help="Folder, x.gguf, OWNER/NAME or bundled model.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="x.gguf, or a folder.")],
    quantization: Annotated[str, typer.Option("--to", "--quantization", help="Weight type.", metavar="TYPE")],
    method: Annotated[
        str | None,
        typer.Option(
            help="rtn: to the nearest; gptq or awq: on a text [default: rtn, gptq with --calibrate]."
        ),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(help="The text for gptq and awq, UTF-8; builtin: IN writes one.", metavar="FILE"),
    ] = None,
    imatrix: Annotated[
        Path | None, typer.Option(help="Importance matrix of llama.cpp (GGUF) to weigh errors by.")
    ] = None,
    save_imatrix: Annotated[
        Path | None, typer.Option(help="Also write the importance matrix of the calibration text.")
    ] = None,
    bits: Annotated[
        float | None,
        typer.Option(help="Mean bits of a weight: more for matrices that lose most, as measured (GGUF)."),
    ] = None,
    windows: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Windows of 512 tokens to read [default: 32].")
    ] = None,
    max_kl: MaxKl = None,
    measure_text: MeasureText = None,
    kv_bits: Annotated[
        float | None,
        typer.Option(help="Mean bits of keys and values: find each layer's, for --kv-cache-dtype mixed."),
    ] = None,
    kv_balance: Annotated[
        bool, typer.Option("--kv-balance", help="Calibrate keys, so that codes of them lose less.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Convert; see HELP."""
    out = out.expanduser().absolute()
    is_gguf = out.suffix == ".gguf"
    builtin = calibrate is not None and str(calibrate) == "builtin"
    known = tuple(gguf_export.FILE_TYPES) if is_gguf else safetensors_export.TYPES
    if quantization.lower() not in known:
        kind = "a GGUF file" if is_gguf else "a folder"
        raise UsageError(f"--quantization {quantization} cannot be written to {kind}: use {', '.join(known)}")
    used = _method(method, calibrate, quantization.lower())
    is_calibrated = used != "rtn"
    _check_extras(imatrix, save_imatrix, bits, is_gguf=is_gguf, is_calibrated=is_calibrated)
    if kv_bits is not None:
        choices_for(kv_bits)  # refuses too few before anything is read
    text = None if calibrate is None or builtin else read_text(str(calibrate))
    weights_of = None if imatrix is None else read_imatrix(imatrix.expanduser())
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
    _check_imatrix_out(save_imatrix, force=force)
    wants_kv = kv_balance or kv_bits is not None
    wants_text = is_calibrated or wants_kv or bits is not None
    if windows is not None and not wants_text:
        note("warning: --windows has no effect: plain rounding reads no text")
    read = None
    if wants_text:
        most = windows or WINDOWS
        read = calibration_windows(source, settings, text, windows=most, length=WINDOW_TOKENS)
    tokens, kv = read if is_calibrated else None, read if wants_kv else None
    work = out.with_name(f".{out.name}.calibration")
    made = {
        "from": served_name(source, path),
        "weights": quantization.lower(),
        "method": used if imatrix is None else f"imatrix {imatrix.name}",
        "calibrated on": _text_name(calibrate, text) if read is not None else "",
    }
    with open_checkpoint(path) as opened, staged(out) as staging, _goes_on(work):
        export = Export(
            checkpoint=in_own_order(opened),
            path=path,
            name=served_name(source, path).removesuffix(".gguf"),
            type=quantization.lower(),
            threads=settings.threads or usable_cores(),
        )
        if bits is not None:
            assert read is not None
            export = _mixed(export, read, bits)
        if tokens is not None:
            sums = None if save_imatrix is None else dict[str, Moments]()
            export = _calibrated(export, used, tokens, work, sums, is_gguf=is_gguf)
            if save_imatrix is not None and sums is not None:
                _save_imatrix(export, save_imatrix.expanduser(), sums, tokens, made["calibrated on"])
        if weights_of is not None:
            export = _weighted(export, weights_of)
        with progress_bar(f"writing {out.name}") as progress:
            lines = export.to_gguf(staging, progress) if is_gguf else export.to_folder(staging, progress)
        layers = None
        if kv is not None:
            with progress_bar("calibrating keys and values", unit="forms") as progress:
                layers = calibrate_kv(staging, order.options, kv, kv_bits, progress)
            write_record(staging, ModelRecord(kv=layers))
        report = measured(staging, out, {key: value for key, value in made.items() if value}, order)
        of_kv = None if kv_bits is None else measured_kv(staging, out, order)
    shutil.rmtree(work, ignore_errors=True)
    if json:
        quality = None if report is None else to_builtins(report.measured)
        said = {"out": str(out), "classes": [asdict(line) for line in lines], "quality": quality}
        if layers is not None:
            of_mixed = None if of_kv is None else to_builtins(of_kv.measured)
            said["kv"] = {"bits": layers.bits, "quality": of_mixed}
        print_json(said)
    else:
        _print(lines)
        print()
        print_quality(report)
        if of_kv is not None:
            print("\nwith --kv-cache-dtype mixed")
            print_quality(of_kv)
        note(f"wrote {out}")
    if quantization.lower() == "int4":
        note("only headrace reads this folder: --to w4a16 writes one for other programs")
    if is_gguf and _is_only_for_headrace(out):
        note("only headrace reads this file: llama.cpp has no name for how this model's tokenizer cuts texts")


@contextmanager
def _goes_on(work: Path) -> Generator[None]:
    """What is calibrated stays in that folder, where the run fails or is interrupted: it says so."""
    try:
        yield
    except QualityBelowBound:
        shutil.rmtree(work, ignore_errors=True)
        raise
    except (HeadraceError, OSError, KeyboardInterrupt):
        if work.is_dir():
            size = sum(one.stat().st_size for one in work.rglob("*") if one.is_file())
            note(
                f"what was calibrated stays in {work} ({size / 1e6:,.0f} MB): the same command goes on from "
                "it; delete it otherwise"
            )
        raise


def _text_name(calibrate: Path | None, text: str | None) -> str:
    """Without the folders, which are nobody's business who reads the card."""
    return "its own text" if calibrate is None or text is None else calibrate.name


def _method(method: str | None, calibrate: Path | None, type: str) -> str:
    if method not in (None, *METHODS):
        raise UsageError(f"--method is {method}: use {' or '.join(METHODS)}", param="method")
    if method == "rtn" and calibrate is not None:
        raise UsageError("--method rtn reads no text: leave --calibrate out", param="calibrate")
    if method == "rtn" or (method is None and calibrate is None):
        return "rtn"
    if type not in CALIBRATED_TYPES:
        raise UsageError(
            f"--quantization {type} is not calibrated: use {', '.join(CALIBRATED_TYPES)}, or --method rtn",
            param="method",
        )
    if method == "awq" and type == "int4":
        others = ", ".join(one for one in CALIBRATED_TYPES if one != "int4")
        raise UsageError(
            f"--method awq scales inputs, which int4 rotates: use gptq, or --to {others}", param="method"
        )
    return method or "gptq"


def _check_extras(
    imatrix: Path | None, save: Path | None, bits: float | None, *, is_gguf: bool, is_calibrated: bool
) -> None:
    if imatrix is not None and (is_calibrated or not is_gguf):
        raise UsageError(
            "--imatrix weighs plain rounding into GGUF: leave --method gptq out, and let OUT end in .gguf",
            param="imatrix",
        )
    if save is not None and not (is_calibrated and is_gguf):
        raise UsageError(
            "--save-imatrix needs a calibration into GGUF: --method gptq, and an OUT that ends in .gguf",
            param="save_imatrix",
        )
    if bits is not None and not is_gguf:
        raise UsageError("--bits mixes types of GGUF: let OUT end in .gguf", param="bits")


def _check_imatrix_out(file: Path | None, *, force: bool) -> None:
    """Before anything is calibrated for it."""
    if file is None:
        return
    file = file.expanduser()
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent}: make it first", param="save_imatrix")
    if file.exists() and not (force and file.is_file() and file.suffix == ".gguf"):
        raise UsageError(
            f"{file} already exists: choose another name, or replace a .gguf file with --force",
            param="save_imatrix",
        )


def _mixed(export: Export, tokens: Ints, bits: float) -> Export:
    """With types for matrices that lose most, within the budget."""
    gguf = export.gguf(Converter(1))
    outputs = gguf.outputs()
    count = sum(prod(one.shape) for one in outputs if len(one.shape) > 1)
    least = mean_bits(outputs)
    choose({}, bits, least, count)  # refuses a budget before the text is read
    grids = grid_for(replace(export, calibrated=True), is_gguf=True)
    names = frozenset(name for name in export.checkpoint.tensors if grids(name) is not None)
    candidates: dict[str, MatrixCandidate] = {}

    def seen(name: str, weight: Array, moments: Moments) -> None:
        candidates[name] = losses_of(weight, moments, gguf.type_of(name))

    with progress_bar("measuring losses", unit="matrices") as progress:
        observe_inputs(export.checkpoint, tokens, names, seen, progress)
    return replace(export, types=choose(candidates, bits, least, count))


def _weighted(export: Export, importance: dict[str, Floats]) -> Export:
    """With the matrices rounded whose inputs are known, each block by itself."""
    gguf, ready, missing = export.gguf(Converter(1)), dict[str, Bytes](), list[str]()
    grids = grid_for(replace(export, calibrated=True), is_gguf=True)
    names = [name for name in export.checkpoint.tensors if grids(name) is not None]
    with progress_bar("rounding", unit="matrices") as progress:
        for done, name in enumerate(names):
            progress(done, len(names))
            stored, expert = gguf.stored_name(name)
            found, grid = importance.get(stored), grids(name)
            if found is None or grid is None or isinstance(grid, RotatedInt4):
                missing.append(stored)
                continue
            row = found if found.ndim == 1 else found[expert or 0]
            ready[name] = weighted(export.checkpoint.float32(name), row, grid, name=name).data
    if not ready:
        raise UsageError("the importance matrix has none of this model's tensors", param="imatrix")
    if missing:
        note(f"{len(missing)} matrices are not in the importance matrix: {missing[0]} …")
    return replace(export, calibrated=True, ready=ready)


def _save_imatrix(export: Export, file: Path, sums: dict[str, Moments], tokens: Ints, source: str) -> None:
    gguf = export.gguf(Converter(1))
    named = {gguf.stored_name(name)[0]: values for name, values in sums.items()}
    write_imatrix(file, named, tokens.size, source, tokens.shape[1])
    note(f"wrote {file}")


def _calibrated(
    export: Export, method: str, tokens: Ints, work: Path, sums: dict[str, Moments] | None, *, is_gguf: bool
) -> Export:
    def observe(name: str, squares: Moments) -> None:
        if sums is not None:
            sums[name] = squares.copy()

    order = CalibrationOrder(
        windows=tokens,
        grid_of=grid_for(export := replace(export, calibrated=True), is_gguf=is_gguf),
        type=f"{'gguf' if is_gguf else 'folder'} {export.type} {sorted(export.types.items())}",
        work=work,
        observe=observe,
    )
    with progress_bar("calibrating", unit="matrices") as progress:
        if method == "awq":
            scaled = awq(export.checkpoint, order, progress)
            export, left = replace(export, checkpoint=scaled.checkpoint, ready=scaled.ready), scaled.left
        else:
            found = calibrate_checkpoint(export.checkpoint, order, progress)
            scaled, export, left = None, replace(export, ready=found.ready), found.left
    if scaled is not None and scaled.unscaled:
        note(
            f"the inputs of {len(scaled.unscaled)} matrices cannot be scaled, since no norm or other matrix"
            f" makes them alone; errors are weighed by these inputs: {_first_of(scaled.unscaled)}"
        )
    if left:
        note(
            f"{len(left)} matrices have no inputs of their own, such as those of experts, and are"
            f" rounded to the nearest: {_first_of(left)}"
        )
    return export


def _first_of(names: Sequence[str]) -> str:
    return f"{names[0]}{', …' if names[1:] else ''}"


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
