"""How a model is to be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from headrace.config.settings import Settings
from headrace.errors import UsageError

Quantization = Literal["auto", "keep", "bf16", "int8", "int4"]
KvCacheDtype = Literal["auto", "f32", "bf16"]
Backend = Literal["native", "numpy", "torch"]
PoolingName = Literal["auto", "mean", "cls", "last", "none"]
Speculative = Literal["auto", "off"]

NO_DRAFT = "none"  # instead of the name of a draft model
MAX_THREADS = 1024  # as the native pool

_CHOICES: dict[str, tuple[str, ...]] = {
    "quantization": ("auto", "keep", "bf16", "int8", "int4"),
    "kv_cache_dtype": ("auto", "f32", "bf16"),
    "backend": ("native", "numpy", "torch"),
    "pooling": ("auto", "mean", "cls", "last", "none"),
    "speculative": ("auto", "off"),
}
_COUNTS = (
    "max_model_len",
    "threads",
    "max_num_seqs",
    "max_batch_tokens",
    "kv_cache_memory",
    "memory_bytes",
    "speculative_layers",
)


class EngineOptions(Struct, frozen=True, kw_only=True):
    """`quantization` "keep" stays with the checkpoint's type; so does "auto", but for a shipped model that
    runs in another one. `kv_cache_dtype` "auto" is f32 for f32 weights, else bf16.

    `max_model_len` None is the model's own; `threads` None is one per usable core; `max_batch_tokens` is the
    largest step in tokens; `kv_cache_memory` None is what `max_num_seqs` full contexts need, at most half
    of the memory that is free; `memory_bytes` is the most that the process may use, None all that is free;
    `cache_dir` None keeps packed weights nowhere. `pooling` "auto" is what the checkpoint says; anything
    else makes an encoder of a model that can be one. An encoder's largest step has at least `max_model_len`
    tokens.

    `speculative` "auto" verifies draft tokens where that pays; `speculative_model`, a name as the model's
    own, drafts in addition to those looked up, or so many first layers of the model itself do
    (`speculative_layers`); `speculative_model` "none" leaves out the one that ships for `mini`.
    """

    quantization: Quantization = "auto"
    kv_cache_dtype: KvCacheDtype = "auto"
    max_model_len: int | None = None
    threads: int | None = None
    max_num_seqs: int = 32
    max_batch_tokens: int = 512
    kv_cache_memory: int | None = None
    memory_bytes: int | None = None
    backend: Backend = "native"
    pooling: PoolingName = "auto"
    cache_dir: Path | None = None
    offline: bool = False
    speculative: Speculative = "auto"
    speculative_model: str | None = None
    speculative_layers: int | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise UsageError(f"{name} is '{value}', it must be one of {', '.join(choices)}", param=name)
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"{name} is {value!r}, it must be a whole number, at least 1", param=name)
        if self.threads is not None and self.threads > MAX_THREADS:
            raise UsageError(
                f"threads is {self.threads:,}, at most {MAX_THREADS:,} are used", param="threads"
            )
        self._check_drafts()
        if self.max_batch_tokens < self.max_num_seqs:
            raise UsageError(
                f"max_batch_tokens is {self.max_batch_tokens} and max_num_seqs {self.max_num_seqs}: every"
                " running sequence takes a token of each step, so the budget must be at least as large",
                param="max_batch_tokens",
            )

    @property
    def named_draft(self) -> str | None:
        """The draft model that is asked for, if any is."""
        return None if self.speculative_model == NO_DRAFT else self.speculative_model

    def _check_drafts(self) -> None:
        model = self.named_draft
        if model is not None and self.speculative_layers is not None:
            raise UsageError(
                f"speculative_model '{model}' and speculative_layers {self.speculative_layers} are both"
                " given: name one",
                param="speculative_layers",
            )
        name, value = (
            ("speculative_model", model)
            if model is not None
            else ("speculative_layers", self.speculative_layers)
        )
        if value is not None and (self.speculative == "off" or self.backend != "native"):
            raise UsageError(
                f"{name} is {value!r} with speculative {self.speculative} and backend {self.backend}: "
                "it needs speculative auto and backend native",
                param=name,
            )


def engine_options(settings: Settings) -> EngineOptions:
    """The engine's part of the settings."""
    return EngineOptions(
        quantization=settings.quantization,  # type: ignore[arg-type]
        kv_cache_dtype=settings.kv_cache_dtype,  # type: ignore[arg-type]
        max_model_len=settings.max_model_len,
        threads=settings.threads,
        max_num_seqs=settings.max_num_seqs,
        max_batch_tokens=settings.max_batch_tokens,
        kv_cache_memory=settings.kv_cache_memory,
        backend=settings.backend,  # type: ignore[arg-type]
        cache_dir=settings.cache_folder,
        offline=settings.offline,
        speculative=settings.speculative,  # type: ignore[arg-type]
        speculative_model=settings.speculative_model,
        speculative_layers=settings.speculative_layers,
    )
