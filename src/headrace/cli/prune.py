"""`headrace prune`: leave out layers, channels, heads, experts or single weights of a model."""

from __future__ import annotations

import shutil
import tempfile
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from msgspec import to_builtins
from msgspec.structs import replace

from headrace.bench.quality.gate import QualityGate
from headrace.cli.compression import (
    MaxKl,
    MeasureText,
    calibration_windows,
    check_out,
    measured,
    print_quality,
    staged,
)
from headrace.cli.distil import EXTRA, LIBRARIES, trained
from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, print_table, progress_bar, size
from headrace.cli.text_input import read_text
from headrace.compress.own_order import in_own_order
from headrace.compress.pruning.prune import (
    DENSE,
    PruneOrder,
    PruneReport,
    StorageReport,
    float_type,
    pruned,
)
from headrace.compress.pruning.sparsity import METHODS
from headrace.config.extras import extra_module, require
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.loading.export import Export
from headrace.loading.loader import usable_cores
from headrace.loading.options import engine_options
from headrace.loading.text_assets import served_name
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.hub.resolver import resolve
from headrace.weights.safetensors.reader import READABLE

HELP = """Make a model smaller by leaving out the parts that contribute least on a text. Writes a folder of
safetensors, which transformers and other servers load like any model.

--drop-layers leaves out the layers that change their input least (block influence). --ffn keeps a share of
the channels of each MLP, --heads N keeps N query heads in each layer, --experts N keeps N experts of each
mixture: those that are largest on the text. These make a model smaller and faster, and worse: 25 % of the
layers are a lot. --sparsity sets single weights to 0 instead (SparseGPT or Wanda; --pattern 2:4: two of each
four). That loses less, but makes no model faster: zeros are multiplied like any other weight. They are stored
like any other weight, too, but with --format sparse-bitmask (or sparse-24-bitmask with --pattern 2:4): then
files are smaller, and programs with compressed-tensors up to 0.14 read them.

The text is --calibrate FILE; by default (`builtin`) the model writes it. The result is measured against IN
before it is put in place, and the figures go into its card and headrace.json. With --max-kl a worse result is
not written: exit code 1. A pruned model can be a draft model of the original: headrace serve IN
--speculative-model OUT. --heal DATA trains it in the same command, with IN as the teacher (see headrace
distil); a run that was killed resumes.

\b
Examples:
  headrace prune mini mini-4-layers --drop-layers 2
  headrace prune Qwen/Qwen3-0.6B ./small --drop-layers 15% --ffn 0.75 --calibrate chats.txt
  headrace prune ./chat ./half --drop-layers 50% --heal chats.txt --hours 4
  headrace prune ./mixture ./fewer --experts 6 --max-kl 0.5
  headrace prune mini mini-sparse --sparsity 0.5 --pattern 2:4 --format sparse-24-bitmask
"""
BUILTIN = "builtin"
WINDOW_TOKENS = 256


@takes_settings("threads", "offline")
def command(
    source: Annotated[str, typer.Argument(metavar="IN", help="Folder, x.gguf, OWNER/NAME or bundled model.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder.")],
    drop_layers: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Layers to leave out: 25%, or a number.")
    ] = None,
    ffn: Annotated[float | None, typer.Option(help="Share of the channels of each MLP to keep.")] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads of each layer to keep.")] = None,
    experts: Annotated[int | None, typer.Option(help="Experts of each mixture to keep.")] = None,
    sparsity: Annotated[float | None, typer.Option(help="Share of the weights of layers to make 0.")] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="N:M", help="Keep N of each M inputs of a row, such as 2:4.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Of --sparsity: sparsegpt or wanda [default: sparsegpt].")
    ] = None,
    format: Annotated[
        str, typer.Option(help="Of --sparsity: dense, sparse-bitmask, or sparse-24-bitmask with 2:4.")
    ] = DENSE,
    calibrate: Annotated[
        str, typer.Option(metavar="FILE|builtin", help="The text, UTF-8; builtin: IN writes one.")
    ] = BUILTIN,
    windows: Annotated[int, typer.Option(min=1, max=4096, help="Windows of 256 tokens to read.")] = 32,
    heal: Annotated[
        Path | None, typer.Option(help="Train the result on this text, with IN as the teacher (extra train).")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(min=0.001, max=10000, help="How long to heal [default: 1].")
    ] = None,
    max_kl: MaxKl = None,
    measure_text: MeasureText = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if headrace made it.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Prune; see HELP."""
    out = out.expanduser().absolute()
    if out.suffix == ".gguf":
        raise UsageError(f"{out.name}: prune writes a folder, which headrace quantize makes a GGUF file of")
    order = PruneOrder(
        windows=np.zeros((0, 0), np.int32),
        drop_layers=drop_layers,
        ffn=ffn,
        heads=heads,
        experts=experts,
        sparsity=sparsity,
        pattern=pattern,
        method=method or METHODS[0],
        format=format,
    )
    order.check()
    if method is not None and sparsity is None:
        raise UsageError("--method is one of zeros: give --sparsity too", param="method")
    if hours is not None and heal is None:
        raise UsageError("--hours is how long to heal: give --heal too", param="hours")
    if heal is not None and format != DENSE:
        raise UsageError(f"--heal fills zeros: leave --format {format} out", param="format")
    gate = QualityGate(
        reference=source,
        options=engine_options(settings),
        max_kl=max_kl,
        text=None if measure_text is None else read_text(str(measure_text)),
        text_name="" if measure_text is None else measure_text.name,
    )
    text = None if calibrate == BUILTIN else read_text(calibrate)
    lessons = None if heal is None else read_text(str(heal))
    if lessons is not None:
        require(EXTRA, *LIBRARIES)
    fetch(source, settings)
    path = resolve(source, offline=settings.offline)
    check_out(out, path, force=force)
    work = out.with_name(f".{out.name}.distil")
    order = replace(
        order, windows=calibration_windows(source, settings, text, windows=windows, length=WINDOW_TOKENS)
    )
    with staged(out) as staging:
        report = _write(source, path, staging, order, settings)
        made = _made(source, path, report, order) | {
            "calibrated on": "its own text" if text is None else Path(calibrate).name
        }
        healed = None
        if lessons is not None and heal is not None:
            healed = _heal(source, staging, lessons, hours or 1.0, settings, work)
            made |= {"healed on": heal.name, "steps of healing": f"{healed.steps:,}"}
        quality = measured(staging, out, made, gate)
    shutil.rmtree(work, ignore_errors=True)
    if json:
        figures = None if quality is None else to_builtins(quality.measured)
        more = {"healed": to_builtins(healed), "quality": figures}
        print_json({"out": str(out), **to_builtins(report), **more})
        return
    _print(report)
    if healed is not None:
        losses = f"{healed.held_out_before:.4f} to {healed.held_out_after:.4f} nats"
        note(f"healed in {healed.steps:,} steps: the loss on held-out windows went from {losses}")
    print()
    print_quality(quality)
    note(report.speed)
    note(f"wrote {out}")


def _write(source: str, path: Path, staging: Path, order: PruneOrder, settings: Settings) -> PruneReport:
    with (
        open_checkpoint(path) as checkpoint,
        tempfile.TemporaryDirectory(prefix=f"{staging.name}.", dir=staging.parent) as work,
    ):
        with (
            progress_bar("reading", unit="operations") as progress,
            pruned(in_own_order(checkpoint), order, Path(work), progress) as (reader, report),
        ):
            export = Export(
                checkpoint=reader,
                path=path,
                name=served_name(source, path).removesuffix(".gguf"),
                type=float_type(checkpoint),
                threads=settings.threads or usable_cores(),
                sparse="" if order.format == DENSE else order.format,
            )
            lines = export.to_folder(staging, lambda done, total: None)
            if export.sparse:
                size_of = READABLE[export.type.upper()]
                whole = size_of * sum(prod(info.shape) for info in reader.tensors.values())
                report.storage = StorageReport(export.sparse, sum(line.bytes_after for line in lines), whole)
        return report


def _heal(source: str, staging: Path, text: str, hours: float, settings: Settings, work: Path) -> Any:
    """Train what is in `staging`, in its place."""
    module = extra_module(EXTRA, "headrace.distil.learning.run", *LIBRARIES)
    order = module.DistilOrder(
        teacher=source,
        student=staging,
        options=engine_options(settings),
        work=work,
        threads=settings.threads or usable_cores(),
        data=text,
        hours=hours,
    )
    healed = staging.with_name(f"{staging.name}.healed")
    try:
        report = trained(module.distil, order, healed)
        shutil.rmtree(staging)
        healed.replace(staging)
    finally:
        shutil.rmtree(healed, ignore_errors=True)
    return report


def _made(source: str, path: Path, report: PruneReport, order: PruneOrder) -> dict[str, str]:
    """What the card says."""
    found = {"from": served_name(source, path)}
    found["parameters"] = f"{report.parameters:,} of {report.parameters_before:,}"
    if report.layers is not None:
        found["layers left out"] = f"{report.layers.dropped} of {report.layers.before} (block influence)"
    for name in ("ffn", "heads", "experts"):
        part = getattr(report, name)
        if part is not None:
            found[name] = f"{part.after} of {part.before} in each layer"
    if report.sparsity is not None:
        found["zeros"] = f"{report.sparsity.reached:.1%} ({order.method}, {order.pattern or 'any pattern'})"
        found["speed"] = report.speed
    if report.storage is not None:
        found["stored as"] = f"{report.storage.format}, {_saved(report.storage)}"
    return found


def _saved(storage: StorageReport) -> str:
    return f"{size(storage.bytes)} of {size(storage.bytes_dense)}"


def _print(report: PruneReport) -> None:
    rows: list[tuple[str, str, str, str]] = []
    if report.layers is not None:
        low = sorted(report.layers.influence)[: len(report.layers.dropped)]
        what = f"left out {report.layers.dropped}, influence up to {max(low):.3f}"
        rows.append(("layers", f"{report.layers.before}", f"{report.layers.after}", what))
    for name in ("experts", "heads", "ffn"):
        part = getattr(report, name)
        if part is not None:
            what = f"{part.least_share:.1%} of the scores are left in the layer that loses most"
            rows.append((name, f"{part.before}", f"{part.after}", what))
    if report.experts_unreached:
        rows.append(("", "", "", f"{report.experts_unreached} experts were reached by no token of the text"))
    if report.sparsity is not None:
        part = report.sparsity
        what = f"{part.loss:.2%} of the products' squares lost, most in {part.worst}"
        rows.append(("zeros", "", f"{part.reached:.1%}", what))
        if part.plain:
            what = f"{part.plain} matrices have no inputs of their own and lost their smallest weights"
            rows.append(("", "", "", what))
    rows.append(("parameters", f"{report.parameters_before:,}", f"{report.parameters:,}", ""))
    if report.storage is not None:
        part = report.storage
        rows.append(("bytes", size(part.bytes_dense), size(part.bytes), part.format))
    print_table(rows, header=("", "BEFORE", "AFTER", ""))
