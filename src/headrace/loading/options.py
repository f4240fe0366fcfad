"""How a model is to be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from headrace.config.settings import Settings
from headrace.errors import UsageError

Weights = Literal["auto", "keep", "bf16", "int8", "int4"]
KvDtype = Literal["auto", "f32", "bf16"]
ExecutorName = Literal["native", "reference", "torch"]
PoolingName = Literal["auto", "mean", "cls", "last", "none"]
SpeculationMode = Literal["auto", "off"]

NO_DRAFT = "none"  # instead of the name of a draft model
MAX_THREADS = 1024  # as the native pool

_CHOICES: dict[str, tuple[str, ...]] = {
    "weights": ("auto", "keep", "bf16", "int8", "int4"),
    "kv_dtype": ("auto", "f32", "bf16"),
    "executor": ("native", "reference", "torch"),
    "pooling": ("auto", "mean", "cls", "last", "none"),
    "speculation": ("auto", "off"),
}
_COUNTS = (
    "context",
    "threads",
    "max_sequences",
    "token_budget",
    "kv_memory_bytes",
    "memory_bytes",
    "draft_layers",
)


class EngineOptions(Struct, frozen=True, kw_only=True):
    """`weights` "keep" stays with the checkpoint's type; so does "auto", but for a shipped model that runs in
    another one. `kv_dtype` "auto" is f32 for f32 weights, else bf16.

    `context` None is the model's own; `threads` None is one per usable core; `token_budget` is the largest
    step in tokens; `kv_memory_bytes` None is what `max_sequences` full contexts need, at most half of the
    memory that is free; `memory_bytes` is the most that the process may use, None all that is free;
    `cache_dir` None keeps packed weights nowhere. `pooling` "auto" is what the checkpoint says; anything
    else makes an encoder of a model that can be one. An encoder's largest step has at least `context` tokens.
    `speculation` "auto" verifies drafts of the next tokens where that pays. They come from prompt lookup,
    and from `draft_model`, a name like the model's own, or from the first `draft_layers` layers of the model
    itself; `draft_model` "none" is no draft model.
    """

    weights: Weights = "auto"
    kv_dtype: KvDtype = "auto"
    context: int | None = None
    threads: int | None = None
    max_sequences: int = 32
    token_budget: int = 512
    kv_memory_bytes: int | None = None
    memory_bytes: int | None = None
    executor: ExecutorName = "native"
    pooling: PoolingName = "auto"
    cache_dir: Path | None = None
    offline: bool = False
    speculation: SpeculationMode = "auto"
    draft_model: str | None = None
    draft_layers: int | None = None

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
        if self.token_budget < self.max_sequences:
            raise UsageError(
                f"token_budget is {self.token_budget} and max_sequences {self.max_sequences}: every running"
                " sequence takes a token of each step, so the budget must be at least as large",
                param="token_budget",
            )

    @property
    def named_draft(self) -> str | None:
        """The draft model that is asked for, if any is."""
        return None if self.draft_model == NO_DRAFT else self.draft_model

    def _check_drafts(self) -> None:
        model = self.named_draft
        if model is not None and self.draft_layers is not None:
            raise UsageError(
                f"draft_model '{model}' and draft_layers {self.draft_layers} are both given: name one",
                param="draft_layers",
            )
        name, value = ("draft_model", model) if model is not None else ("draft_layers", self.draft_layers)
        if value is not None and (self.speculation == "off" or self.executor != "native"):
            raise UsageError(
                f"{name} is {value!r} with speculation {self.speculation} and executor {self.executor}: "
                "it needs speculation auto and executor native",
                param=name,
            )


def engine_options(settings: Settings) -> EngineOptions:
    """The engine's part of the settings."""
    return EngineOptions(
        weights=settings.weights,  # type: ignore[arg-type]
        kv_dtype=settings.kv_dtype,  # type: ignore[arg-type]
        context=settings.context,
        threads=settings.threads,
        max_sequences=settings.max_sequences,
        token_budget=settings.token_budget,
        kv_memory_bytes=settings.kv_memory,
        executor=settings.executor,  # type: ignore[arg-type]
        cache_dir=settings.cache_folder,
        offline=settings.offline,
        speculation=settings.speculation,  # type: ignore[arg-type]
        draft_model=settings.draft_model,
        draft_layers=settings.draft_layers,
    )
