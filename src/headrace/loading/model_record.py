"""`headrace.json`: what Headrace knows of a model besides its files, above all what its forms lose.

A folder has it beside its weights, a GGUF file NAME.gguf as NAME.gguf.headrace.json. What
`headrace bench quality` measures of other people's files is kept in the cache folder, by the fingerprint of
the weights.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import CorruptFile
from headrace.executors.kv_layers import KvLayers
from headrace.struct_types import thread_safe

RECORD = "headrace.json"
_MAX_BYTES = 4 << 20
_MAX_FORMS = 64


class KlFigures(Struct, frozen=True):
    """KL(reference || model) of the next token, in nats."""

    mean: float
    median: float
    p999: float


class Form(Struct, frozen=True):
    """How a model runs: the weights as they are stored (`keep`) or converted on loading; keys and values in
    16 or 32 bits (`auto`) or in codes."""

    quantization: str = "keep"
    kv_cache_dtype: str = "auto"

    @property
    def is_stored(self) -> bool:
        """Whether nothing is rounded that the files hold."""
        return self == Form()

    @property
    def is_coarse(self) -> bool:
        """Whether anything has fewer than 8 bits."""
        return self.quantization == "int4" or self.kv_cache_dtype not in ("auto", "int8")

    def __str__(self) -> str:
        return f"--quantization {self.quantization} --kv-cache-dtype {self.kv_cache_dtype}"


class MeasuredForm(Struct, frozen=True, kw_only=True):
    """A form of a model against its reference, over `tokens` positions of a text from `source`. Bytes are
    those of the weights, `tokens_per_s` one stream's; 0 where they were not measured."""

    kl: KlFigures
    top1: float
    perplexity: float
    reference_perplexity: float
    tokens: int
    form: Form = Form()
    reference: str = ""
    reference_fingerprint: str = ""
    source: str = ""
    bytes: int = 0
    tokens_per_s: float = 0.0


class ModelRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`quality` are the forms that were measured; `made` says how the files came about; `weight_bytes` are
    those of the files that the record is about: a record of other files counts for nothing. `files` are all
    that Headrace wrote into the folder, by their paths within it."""

    version: int = 1
    weight_bytes: int = 0
    made: dict[str, str] = {}
    quality: tuple[MeasuredForm, ...] = ()
    kv: KvLayers | None = None
    files: tuple[str, ...] = ()

    def measured(self, form: Form) -> MeasuredForm | None:
        """The form's figures."""
        return next((one for one in self.quality if one.form == form), None)

    def with_measured(self, measured: MeasuredForm) -> ModelRecord:
        """With new figures in the place of older ones of the same form."""
        others = tuple(one for one in self.quality if one.form != measured.form)
        return replace(self, quality=(measured, *others)[:_MAX_FORMS])


def record_file(model: Path) -> Path:
    """Where the record of a folder or GGUF file lies."""
    return model / RECORD if model.is_dir() else model.with_name(f"{model.name}.{RECORD}")


def read_record(model: Path) -> ModelRecord:
    """Empty where there is none, or where it is of other weights; CorruptFile where it cannot be read."""
    found = _read(record_file(model))
    return found if found.weight_bytes in (0, weight_bytes(model)) else ModelRecord()


def write_record(model: Path, record: ModelRecord) -> None:
    """Whole or not at all."""
    _write(record_file(model), replace(record, weight_bytes=weight_bytes(model)))


def weight_bytes(model: Path) -> int:
    """Bytes of the files that hold weights."""
    files = model.glob("*.safetensors") if model.is_dir() else (model,)
    return sum(file.stat().st_size for file in files if file.is_file())


def read_cached(cache: Path | None, fingerprint: str) -> ModelRecord:
    """What was measured on this machine of weights with that fingerprint."""
    return ModelRecord() if cache is None else _read(_cached_file(cache, fingerprint))


def write_cached(cache: Path, fingerprint: str, record: ModelRecord) -> None:
    """For `read_cached`."""
    file = _cached_file(cache, fingerprint)
    file.parent.mkdir(parents=True, exist_ok=True)
    _write(file, record)


def _cached_file(cache: Path, fingerprint: str) -> Path:
    return cache / "quality" / f"{fingerprint[:40]}.json"


def _read(file: Path) -> ModelRecord:
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
    except OSError:  # none, or the model is no file at all
        return ModelRecord()
    if len(data) > _MAX_BYTES:
        raise CorruptFile(
            f"{file} has more than {_MAX_BYTES:,} bytes: delete it, and measure the model again"
        )
    try:
        return msgspec.json.decode(data, type=thread_safe(ModelRecord))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(f"{file}: {error}: delete it, and measure the model again") from None


def _write(file: Path, record: ModelRecord) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    text = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
    try:
        temporary.write_bytes(text)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
