"""How a model is loaded and run: the settings that the command line, the server and `LLM` share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct

from headrace.config.setting import Scope, Setting
from headrace.config.values import QUALITY, SIZE, SLO, SWITCH, integer, number, one_of, path, text

Quantization = Literal["auto", "keep", "bf16", "int8", "int4"]
KvCacheDtype = Literal["auto", "f32", "bf16", "int8", "k8v4", "int4", "int3", "mixed"]
Backend = Literal["native", "numpy", "torch"]
Speculative = Literal["auto", "off"]
SloPolicy = Literal["serve", "refuse", "degrade"]
PoolingName = Literal["auto", "mean", "max", "cls", "last", "none", "splade"]
MAX_STAGES = 64
MAX_RANKS = 32
MAX_THREADS = 1024  # as the native pool

_MODEL: tuple[Scope, ...] = ("server", "model")


class ModelSettings(Struct, frozen=True, kw_only=True):
    """One field for each setting of a model; what it means stands beside it."""

    quantization: Annotated[
        Quantization,
        Setting(
            help="weight format to run in; auto and keep: as stored (the bundled mini: int8); "
            "others quantize on load",
            values=one_of(Quantization),
            scopes=_MODEL,
            aliases=("--dtype",),
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        KvCacheDtype,
        Setting(
            help="type of the keys and values kept in memory; k8v4: keys as int8, values as int4; int3 loses "
            "much: measure it with headrace bench quality; mixed: as calibrated for each layer",
            values=one_of(KvCacheDtype),
            scopes=_MODEL,
        ),
    ] = "auto"
    quality: Annotated[
        Mapping[str, float] | None,
        Setting(
            help="refuse to load a quantized model whose measured KL divergence from its reference, in nats, "
            "is higher, or was never measured",
            values=QUALITY,
            shown_default="none",
            scopes=_MODEL,
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Setting(
            help="context length in tokens",
            values=integer(1, unit="tokens"),
            shown_default="the model's limit",
            scopes=_MODEL,
            aliases=("--ctx-size",),
        ),
    ] = None
    threads: Annotated[
        int | None,
        Setting(
            help="compute threads",
            values=integer(1, MAX_THREADS),
            shown_default="the cores it may use",
            scopes=_MODEL,
        ),
    ] = None
    max_num_seqs: Annotated[
        int, Setting(help="sequences computed at the same time", values=integer(1, 4096), scopes=_MODEL)
    ] = 32
    max_batch_tokens: Annotated[
        int,
        Setting(
            help="most tokens computed in one step",
            values=integer(1, 2**20, "tokens"),
            scopes=_MODEL,
            aliases=("--max-num-batched-tokens",),
        ),
    ] = 512
    pp: Annotated[
        int,
        Setting(
            help="processes over which the layers are split (pipeline parallelism), for a model that is "
            "too large for one process; a memory budget applies to each process",
            values=integer(1, MAX_STAGES),
            scopes=_MODEL,
            aliases=("--pipeline-parallel-size",),
        ),
    ] = 1
    tensor_parallel_size: Annotated[
        int,
        Setting(
            help="processes over which every matrix is split by its outputs (tensor parallelism), each on "
            "its part of the cores; the model's KV heads must divide by it",
            values=integer(1, MAX_RANKS),
            scopes=_MODEL,
            aliases=("--tp",),
        ),
    ] = 1
    kv_cache_memory: Annotated[
        int | None,
        Setting(
            help="memory for keys and values, e.g. 4GiB",
            values=SIZE,
            shown_default="planned from free memory",
            scopes=_MODEL,
        ),
    ] = None
    backend: Annotated[
        Backend,
        Setting(
            help="what runs the model: C++ kernels, the NumPy definition, torch",
            values=one_of(Backend),
            scopes=_MODEL,
        ),
    ] = "native"
    pooling: Annotated[
        PoolingName,
        Setting(
            help="how an encoder makes one vector of a text; none: a vector of each token",
            values=one_of(PoolingName),
            scopes=_MODEL,
        ),
    ] = "auto"
    speculative: Annotated[
        Speculative,
        Setting(
            help="draft tokens and verify several in one step where that pays; never changes the output",
            values=one_of(Speculative),
            scopes=_MODEL,
        ),
    ] = "auto"
    speculative_model: Annotated[
        str | None,
        Setting(
            help="small model with the same tokenizer that drafts tokens, as nano does for mini",
            values=text("model"),
            shown_default="none",
            scopes=_MODEL,
        ),
    ] = None
    speculative_layers: Annotated[
        int | None,
        Setting(
            help="first layers of the model itself that draft tokens",
            values=integer(1),
            shown_default="none",
            scopes=_MODEL,
        ),
    ] = None
    share: Annotated[
        float,
        Setting(
            help="the model's share of the cores, relative to other models, while all are busy",
            values=number(0.01, 1000.0, "parts"),
            scopes=_MODEL,
        ),
    ] = 1.0
    max_turn_ms: Annotated[
        float,
        Setting(
            help="most milliseconds that a step takes while another model waits",
            values=number(1, 10_000, "milliseconds"),
            scopes=_MODEL,
        ),
    ] = 40.0
    slo: Annotated[
        Mapping[str, float] | None,
        Setting(
            help="targets of the time to first token and per token after it; "
            "a model with targets is computed before models without",
            values=SLO,
            shown_default="none",
            scopes=_MODEL,
        ),
    ] = None
    slo_policy: Annotated[
        SloPolicy,
        Setting(
            help="a request that is predicted to miss its ttft_ms: serve it late, refuse it with 429, "
            "or degrade: slo_fallback answers it",
            values=one_of(SloPolicy),
            scopes=_MODEL,
        ),
    ] = "serve"
    slo_fallback: Annotated[
        str | None,
        Setting(
            help="with slo_policy degrade: the served model that answers what would be late",
            values=text("model"),
            shown_default="none",
            scopes=_MODEL,
        ),
    ] = None
    cache_dir: Annotated[
        Path | None,
        Setting(
            help="where packed weights are kept", values=path("folder"), shown_default="~/.cache/headrace"
        ),
    ] = None
    offline: Annotated[
        bool, Setting(help="never reach for the network", values=SWITCH, shown_default="false")
    ] = False
