"""How a model is to be loaded."""

from __future__ import annotations

from typing import Annotated, Any

from headrace.config.model_settings import ModelSettings
from headrace.config.setting import Setting, table_of
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.config.values import SIZE
from headrace.engine.pacing import PaceOptions
from headrace.errors import UsageError

NO_DRAFT = "none"  # instead of the name of a draft model


class EngineOptions(ModelSettings, frozen=True, kw_only=True):
    """`quantization` "keep" stays with the checkpoint's type; so does "auto", but for a shipped model that
    runs in another one. `kv_cache_dtype` "auto" is f32 for f32 weights, else bf16; int8,
    k8v4 (keys as int8, values as int4), int4 and int3 are codes with a scale for each token and head.

    `max_model_len` None is the model's own; `threads` None is one per usable core; `max_batch_tokens` is the
    largest step in tokens; `kv_cache_memory` None is what `max_num_seqs` full contexts need, at most half
    of the memory that is free; `memory_bytes` is the most that the process may use, None all that is free;
    `cache_dir` None keeps packed weights nowhere. `pooling` "auto" is what the checkpoint says; anything
    else makes an encoder of a model that can be one ("splade": sparse vectors). An encoder's largest step has
    at least `max_model_len` tokens.

    `speculative` "auto" verifies draft tokens where that pays; `speculative_model`, a name as the model's
    own, drafts in addition to those looked up, or so many first layers of the model itself do
    (`speculative_layers`); `speculative_model` "none" leaves out the one that ships for `mini`.
    """

    memory_bytes: Annotated[int | None, Setting(help="most memory that the process may use", values=SIZE)] = (
        None
    )

    def __post_init__(self) -> None:
        for name, setting in OPTIONS.items():
            setting.check(getattr(self, name))
        self._check_drafts()
        if self.processes > 1 and (self.backend != "native" or self.speculative_layers is not None):
            name, value = ("pp", self.pp) if self.pp > 1 else ("tensor_parallel_size", self.processes)
            raise UsageError(
                f"{name} is {value} with "
                + ("speculative_layers" if self.backend == "native" else f"backend {self.backend}")
                + ", which need the whole model in one process: leave one of the two out",
                param=name,
            )
        if (self.slo_policy == "degrade") != (self.slo_fallback is not None):
            raise UsageError(
                "slo_policy degrade and slo_fallback, the model that answers then, go together: give both or"
                " neither",
                param="slo_fallback" if self.slo_policy == "degrade" else "slo_policy",
            )
        if self.max_batch_tokens < self.max_num_seqs:
            raise UsageError(
                f"max_batch_tokens is {self.max_batch_tokens} and max_num_seqs {self.max_num_seqs}: every"
                " running sequence takes a token of each step, so the budget must be at least as large",
                param="max_batch_tokens",
            )

    @property
    def processes(self) -> int:
        """Over which the model is split."""
        return self.pp * self.tensor_parallel_size

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


OPTIONS = table_of(EngineOptions)
"""Every keyword of `LLM`, which are the settings of a model and those that only Python has."""


def pace_of(options: EngineOptions) -> PaceOptions:
    """What the steps of a model are measured against."""
    slo = options.slo or {}
    return PaceOptions(
        share=options.share,
        max_turn_s=options.max_turn_ms / 1e3,
        ttft_s=None if "ttft_ms" not in slo else slo["ttft_ms"] / 1e3,
        tpot_s=None if "tpot_ms" not in slo else slo["tpot_ms"] / 1e3,
        slo_policy=options.slo_policy,
        fallback=options.slo_fallback,
    )


def engine_options(settings: Settings) -> EngineOptions:
    """The model's part of the settings."""
    values: dict[str, Any] = {name: getattr(settings, name) for name in MODEL_SETTINGS}
    values["cache_dir"] = settings.cache_folder
    return EngineOptions(**values)
