"""What the commands that make a model smaller share: where they write, and the gate before it is in place."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from msgspec.structs import replace

from headrace.bench.quality.card import card_file
from headrace.bench.quality.gate import QualityGate, gate, gate_kv
from headrace.bench.quality.own_text import TextOrder, own_text
from headrace.bench.quality.report import QualityReport
from headrace.cli.terminal import note, print_table, progress_bar, status
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.loading.model_record import read_record, record_file, write_record
from headrace.loading.options import engine_options
from headrace.ops.value import Ints

CALIBRATION_SEED = 1_000_003
"""Not that of the measurement: a model is not measured on the text that it was calibrated on."""
_FEW_TOKENS = 32
_OF_MODELS = (".json", ".jinja", ".txt", ".md", ".model", ".safetensors", ".png")


MaxKl = Annotated[
    float | None, typer.Option(min=0.0, help="Write nothing if the mean KL divergence is higher.")
]
MeasureText = Annotated[
    Path | None, typer.Option(help="The text to measure on, UTF-8 [default: IN writes one].")
]


def check_out(out: Path, *sources: Path, force: bool) -> None:
    """UsageError where `out` may not be written: it exists, or Headrace did not make it, or a source lies in
    it. A folder that Headrace made has a record of its files, and nothing else in it."""
    if not out.exists():
        return
    if not force:
        raise UsageError(f"{out} already exists: choose another name, or replace it with --force")
    if out.is_dir() and any(out.iterdir()):
        is_ours = (out / "config.json").is_file() and record_file(out).is_file()
        written = read_record(out).files if is_ours else ()
        foreign = next(
            (file for file in sorted(out.rglob("*")) if not _is_of_model(file, out, written)), None
        )
        if not is_ours or foreign is not None:
            what = "it has no headrace.json" if foreign is None else f"{foreign.relative_to(out)} is in it"
            raise UsageError(
                f"{out} is a folder without a model, or with more than one: {what}; --force replaces only"
                " models that headrace wrote"
            )
    if out.is_file() and out.suffix != ".gguf":
        raise UsageError(f"{out} is no model: --force replaces models only")
    for source in (*sources, Path.cwd()):
        if source.resolve() == out.resolve() or out.resolve() in source.resolve().parents:
            raise UsageError(f"{out} holds {source}, which is still needed: choose another name")


def _is_of_model(file: Path, folder: Path, written: Collection[str]) -> bool:
    """Records of earlier versions name no files: then by the suffix."""
    if file.is_symlink():
        return False
    if written and file.is_file():
        return file.relative_to(folder).as_posix() in written
    known = file.suffix in _OF_MODELS or file.name.startswith("LICENSE")
    return file.is_dir() or (file.is_file() and known)


@contextmanager
def staged(out: Path) -> Generator[Path]:
    """A path beside `out` to write the model to; it takes the place of `out` where all goes well, with its
    record and card, else nothing is left."""
    staging = out.with_name(f".{out.stem}.{os.getpid()}.staged{out.suffix if out.suffix == '.gguf' else ''}")
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(out)
    sides = (record_file, card_file)
    try:
        yield staging
        if staging.is_dir():
            _record_files(staging)
        for side in sides if out.is_file() else ():
            side(out).unlink(missing_ok=True)
        if out.is_dir() and not out.is_symlink():
            shutil.rmtree(out)
        else:
            out.unlink(missing_ok=True)
        beside = [file(staging) for file in sides] if staging.is_file() else []
        staging.replace(out)
        for file in beside:
            if file.is_file():
                file.replace(out.with_name(out.name + file.name.removeprefix(staging.name)))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"no space left in {out.parent}, where {out.name} is written: nothing of it is kept; free space"
            " and run it again, a calibration goes on where it stopped",
        ) from error
    finally:
        _remove(staging, *(file(staging) for file in sides))


def _record_files(folder: Path) -> None:
    if record_file(folder).is_file():
        files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        write_record(folder, replace(read_record(folder), files=tuple(files)))


def _remove_left(out: Path) -> None:
    """What runs for the same `out` have left that were killed. One with this process's id was: in containers
    each run has the same."""
    name = re.compile(rf"\.{{1,2}}{re.escape(out.stem)}\.(\d{{1,10}})\.staged([._].*|\.)?", re.DOTALL)
    for path in out.parent.iterdir():
        found = name.fullmatch(path.name)
        if found is not None and not path.is_symlink() and not _runs_beside(int(found[1])):
            note(f"removing {path}: a run that was killed has left it")
            _remove(path)


def _runs_beside(process: int) -> bool:
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def calibration_windows(
    source: str, settings: Settings, text: str | None, *, windows: int, length: int
) -> Ints:
    """Tokens of the calibration text [N, L]; without one, of what the model writes itself."""
    order = TextOrder(windows=windows, length=length, continued=0, text=text, seed=CALIBRATION_SEED)
    with status() as show:
        options = replace(engine_options(settings), quantization="keep")
        tokens = own_text(source, options, order, show).windows.tokens
    different = len(np.unique(tokens))
    if text is not None and different < min(_FEW_TOKENS, tokens.size // 32):
        note(
            f"warning: the calibration text has only {different} different tokens among {tokens.size:,}: the"
            " result may lose more than without a text; take one like the model's later traffic"
        )
    return tokens


def measured(written: Path, out: Path, made: Mapping[str, str], order: QualityGate) -> QualityReport | None:
    """The gate, with what it does shown in a terminal."""
    with status() as show, progress_bar("measuring", unit="windows") as progress:
        return gate(written, out.name, made, order, show=show, progress=progress)


def measured_kv(written: Path, out: Path, order: QualityGate) -> QualityReport:
    """The same for keys and values as they were calibrated."""
    with status() as show, progress_bar("measuring keys and values", unit="windows") as progress:
        return gate_kv(written, out.name, order, show=show, progress=progress)


def print_quality(report: QualityReport | None) -> None:
    """What was lost, in a line."""
    if report is None:
        note("an encoder: its quality is not measured, since it predicts no next token")
        return
    row = (
        f"{report.kl.mean:.5f}",
        f"{report.kl.median:.5f}",
        f"{report.kl.p999:.4f}",
        f"{report.top1:.2%}",
        f"{report.perplexity_ratio - 1:+.2%}",
        f"{report.tokens:,}",
    )
    print_table([row], header=("KL MEAN", "MEDIAN", "99.9 %", "TOP-1", "PERPLEXITY", "TOKENS"))
