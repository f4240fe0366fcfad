"""From a name to a running engine: find, check, plan, pack, start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from headrace import _native
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.engine.client import EngineClient, EngineLimits, LoadedModel, MemoryPlan
from headrace.engine.encoder import Encoder
from headrace.engine.engine import Engine
from headrace.engine.speculative.draft_compatibility import check_pair
from headrace.engine.speculative.draft_model import DraftModel
from headrace.engine.speculative.speculation import Speculation
from headrace.errors import CorruptFile, UsageError
from headrace.executors.executor import Executor
from headrace.executors.native import NativeExecutor
from headrace.executors.reference import ReferenceExecutor
from headrace.executors.torch_executor import TorchExecutor
from headrace.loading.free_memory import free_memory_bytes
from headrace.loading.memory_plan import capacity_of, plan_memory
from headrace.loading.options import EngineOptions
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.text_assets import load_text_assets, served_name
from headrace.models.decoder_config import DecoderConfig
from headrace.models.registry import Model, find_model
from headrace.ops.value import Array
from headrace.program.program import Program
from headrace.program.record import record
from headrace.program.reorder import reorder_inputs
from headrace.program.verify import verify
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import Sampler
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.checkpoint_reader import CheckpointReader, TensorReader
from headrace.weights.config_json import Config, find
from headrace.weights.hub.bundled import BUNDLED_DEFAULT, bundled_weights
from headrace.weights.hub.resolver import resolve
from headrace.weights.packing.packed_weights import PackedWeight, WeightSpec, format_of, load_packed
from headrace.weights.pooling import Pooling, read_pooling

# A router is a thousandth of its layer, and a choice that rounding has changed changes everything after it.
COARSE = ("int8", "int4")

DRAFT_KV_SHARE, DRAFT_KV_BYTES = 0.05, 8 << 20
"""For the keys and values of a draft model: of the free memory, and at least."""

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while weights are packed."""


class PlannedModel(Struct, frozen=True, kw_only=True):
    """A checkpoint that has been read, checked and planned, but not loaded. An encoder may `normalize`
    vectors."""

    name: str
    folder: Path
    checkpoint: CheckpointReader
    model: Model
    program: Program
    wanted: tuple[WeightSpec, ...]
    tokenizer: Tokenizer
    template: ChatTemplate | None
    plan: MemoryPlan
    normalize: bool
    draft: PlannedModel | None = None  # where it has the same checkpoint: the model's own first layers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def draft_bytes(self, checkpoint: CheckpointReader) -> int:
        """What it takes beside the model of `checkpoint` that it drafts for; its weights may be the same."""
        return self.plan.own_bytes - (self.plan.weights_bytes if self.checkpoint is checkpoint else 0)

    def close(self) -> None:
        """Close the checkpoint, that of the draft model too."""
        self.checkpoint.close()
        if self.draft is not None:
            self.draft.close()


def load_model(name: str | None, options: EngineOptions, *, progress: Progress | None = None) -> LoadedModel:
    """Load a folder, a hub name or a shipped model (None: the default one) and start its engine."""
    return start(prepare(name, options), options, progress=progress)


def start(prepared: PlannedModel, options: EngineOptions, *, progress: Progress | None = None) -> LoadedModel:
    """Pack the weights, or read them from the cache, and start the engine; closes the checkpoint."""
    with prepared:
        pool = _native.Pool(options.threads or usable_cores())
        failures: list[Path] = []

        def load(of: PlannedModel) -> PackedWeights:
            return load_weights(of, options, pool, progress, failures.append)

        weights = load(prepared)
        executor = make_executor(prepared, options, pool, weights)
        speculation = make_speculation(prepared, options, pool, weights, load)
        defaults = default_params(prepared.checkpoint.generation_config)
    return LoadedModel(
        name=prepared.name,
        folder=prepared.folder,
        context_length=prepared.plan.context,
        tokenizer=prepared.tokenizer,
        template=prepared.template,
        engine=_engine(prepared, options, executor, pool, speculation),
        defaults=defaults,
        plan=prepared.plan,
        created_s=int(time.time()),
        cache_failures=len(failures),
    )


def _engine(
    prepared: PlannedModel,
    options: EngineOptions,
    executor: Executor,
    pool: _native.Pool,
    speculation: Speculation | None,
) -> EngineClient:
    config, pooling = prepared.model.config, prepared.model.pooling
    limits = EngineLimits(
        context_length=prepared.plan.context,
        max_num_seqs=options.max_num_seqs,
        embedding_size=0 if pooling is None else config.hidden,
    )
    if pooling is not None:
        return Encoder(executor, limits, Pooling(pooling, prepared.normalize), vocabulary=config.vocabulary)
    sampler = Sampler(config.vocabulary, pool)
    return Engine(executor, sampler, prepared.tokenizer, limits, speculation=speculation)


def prepare(name: str | None, options: EngineOptions) -> PlannedModel:
    """Everything up to the memory plan; the caller closes the checkpoint."""
    name = BUNDLED_DEFAULT if name is None else name
    folder = resolve(name, offline=options.offline)
    checkpoint = open_checkpoint(folder)
    try:
        text = load_text_assets(folder, checkpoint.metadata)
        name = served_name(name, folder)
        if options.named_draft is None:
            return prepare_checkpoint(checkpoint, options, name, folder, *text)
        draft = prepare_draft(options.named_draft, options, name, text[0])
        try:
            return prepare_checkpoint(checkpoint, options, name, folder, *text, draft=draft)
        except BaseException:
            draft.close()
            raise
    except BaseException:
        checkpoint.close()
        raise


def prepare_checkpoint(
    checkpoint: CheckpointReader,
    options: EngineOptions,
    name: str,
    folder: Path,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    *,
    draft: PlannedModel | None = None,
) -> PlannedModel:
    """The same for an open checkpoint, which stays the caller's where this raises."""
    _check_isa()
    model, normalize = model_of(checkpoint.config, folder, options)
    encodes = model.pooling is not None
    if encodes and (draft is not None or options.speculative_layers is not None):
        raise UsageError(f"{name} is an encoder, which generates nothing to draft: leave its draft out")

    def plan(model: Model, options: EngineOptions, draft: PlannedModel | None = None) -> PlannedModel:
        program = verify(record(model.define))
        program = reorder_inputs(program, ProgramWeights(checkpoint, program).input_order)
        wanted = weight_specs(program, ProgramWeights(checkpoint, program), options, folder)
        drafts = 0 if draft is None else draft.draft_bytes(checkpoint)
        memory = plan_memory(
            program, wanted, options, context=model.config.context, encodes=encodes, draft_bytes=drafts
        )
        return PlannedModel(
            name=name,
            folder=folder,
            checkpoint=checkpoint,
            model=model,
            program=program,
            wanted=wanted,
            tokenizer=tokenizer,
            template=template,
            plan=memory,
            normalize=normalize,
            draft=draft,
        )

    if options.speculative_layers is not None:
        draft = plan(first_layers(model, options.speculative_layers), draft_options(options))
    return plan(model, options, draft)


def _check_isa() -> None:
    try:
        _native.isa()
    except RuntimeError as error:  # HEADRACE_ISA names one that this machine lacks
        raise UsageError(str(error)) from None


def draft_options(options: EngineOptions) -> EngineOptions:
    """How a draft model is to be loaded beside its model."""
    shared = max(int(free_memory_bytes() * DRAFT_KV_SHARE), DRAFT_KV_BYTES)
    return replace(
        options, speculative="off", speculative_model=None, speculative_layers=None, kv_cache_memory=shared
    )


def first_layers(model: Model, layers: int) -> Model:
    """The first layers of a model as a model of their own (as in Elhoushi et al. 2024, "LayerSkip");
    UsageError where it has no so many."""
    config = model.config
    if not isinstance(config, DecoderConfig) or layers >= config.layers:
        raise UsageError(
            f"speculative_layers is {layers}, {model.model_type} has {config.layers} layers: use fewer"
            " of them, of a decoder that only attends",
            param="speculative_layers",
        )
    return replace(model, config=replace(config, layers=layers))


def prepare_draft(draft_name: str, options: EngineOptions, name: str, tokenizer: Tokenizer) -> PlannedModel:
    """The draft model of the model `name`, with its own plan; UsageError where it does not fit to it."""
    draft = prepare(draft_name, replace(draft_options(options), max_model_len=None))
    try:
        check_pair(name, tokenizer, draft_name, draft.tokenizer)
        if draft.model.pooling is not None:
            raise UsageError(
                f"speculative_model '{draft_name}' is an encoder: choose one that generates",
                param="speculative_model",
            )
        if draft.plan.state_bytes:
            raise UsageError(
                f"speculative_model '{draft_name}' keeps a state that cannot be taken back: choose one"
                " that only attends",
                param="speculative_model",
            )
    except BaseException:
        draft.close()
        raise
    return draft


def make_speculation(
    prepared: PlannedModel,
    options: EngineOptions,
    pool: _native.Pool,
    weights: PackedWeights,
    load: Callable[[PlannedModel], PackedWeights],
) -> Speculation | None:
    """What guesses tokens; None where it is off, or the model keeps a state that cannot be taken back.
    `weights` are the model's own, `load` gets those of a draft model."""
    if options.speculative == "off" or prepared.plan.state_bytes or prepared.model.pooling is not None:
        return None
    model = None
    draft = prepared.draft
    if draft is not None:
        own = draft.checkpoint is prepared.checkpoint
        executor = make_executor(draft, options, pool, weights if own else load(draft))
        assert isinstance(executor, NativeExecutor)
        sampler = Sampler(draft.model.config.vocabulary, pool)
        model = DraftModel(
            executor, sampler, context=draft.plan.context, vocabulary=prepared.model.config.vocabulary
        )
    rows = capacity_of(prepared.plan, options).max_rows
    return Speculation(max_rows=rows, model=model)


def model_of(config: Config, folder: Path, options: EngineOptions) -> tuple[Model, bool]:
    """The model, which encodes where the options or the files in its folder say so, and whether its vectors
    are brought to length 1."""
    if options.pooling != "auto":
        pooling = Pooling(options.pooling, normalize=options.pooling != "none")
    else:
        pooling = read_pooling(folder) if folder.is_dir() else None
    kind = None if pooling is None else pooling.kind
    model = find_model(config, context=options.max_model_len, pooling=kind)
    return model, pooling is None or pooling.normalize


def weight_specs(
    program: Program, checkpoint: TensorReader, options: EngineOptions, folder: Path
) -> tuple[WeightSpec, ...]:
    """The matrices to pack, in the program's order; CorruptFile where a tensor has another shape,
    UnsupportedModel where it has an element type that is none of weights. `folder` is the model's."""
    wanted: list[WeightSpec] = []
    choice = (bundled_weights(folder) or "keep") if options.quantization == "auto" else options.quantization
    routers = _routers(program)
    for name, value in program.weights.items():
        info = checkpoint.info(name)
        if tuple(info.shape) != value.shape:
            raise CorruptFile(
                f"tensor {name} has shape {tuple(info.shape)}, config.json implies {value.shape}: "
                "the weights do not belong to this config"
            )
        if len(value.shape) == 2:
            n, k = int(value.shape[0]), int(value.shape[1])
            checkpoint.row_dtype(name)  # names a tensor that has no numbers
            format = format_of(choice, info.dtype)
            wanted.append(WeightSpec(name, n, k, "bf16" if name in routers and format in COARSE else format))
    return tuple(wanted)


def _routers(program: Program) -> set[str]:
    """The matrices whose products choose experts."""
    logits = {ins.inputs[0] for ins in program.expanded() if ins.name == "route"}
    routers = {ins.inputs[1] for ins in program.expanded() if not logits.isdisjoint(ins.outputs)}
    return {router.name for router in routers if router is not None}


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_params(generation: Config | None) -> SamplingParams:
    """Sampling defaults of generation_config.json; greedy where it says `do_sample: false`."""
    if not generation:
        return SamplingParams()
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given = {name: find(generation, name) for name in names}
    values: dict[str, float] = {k: v for k, v in given.items() if isinstance(v, int | float)}
    if find(generation, "do_sample") is False:
        values["temperature"] = 0.0
    return SamplingParams(**values)  # type: ignore[arg-type]


class PackedWeights(Struct, frozen=True):
    """A program's weights by name: packed matrices, and as float32 what is not packed."""

    matrices: Mapping[str, PackedWeight]
    floats: Mapping[str, Array]


def load_weights(
    prepared: PlannedModel,
    options: EngineOptions,
    pool: _native.Pool,
    progress: Progress | None = None,
    on_failure: Callable[[Path], None] = lambda path: None,
) -> PackedWeights:
    """The weights as the executor wants them; `on_failure` gets the cache file that could not be written."""
    program = prepared.program
    checkpoint = ProgramWeights(prepared.checkpoint, program)
    if options.backend != "native":
        return PackedWeights({}, {name: checkpoint.float32(name) for name in program.weights})
    matrices = load_packed(
        checkpoint, prepared.wanted, pool, cache=options.cache_dir, progress=progress, on_failure=on_failure
    )
    vectors = {name: checkpoint.float32(name) for name, v in program.weights.items() if len(v.shape) != 2}
    return PackedWeights(matrices, vectors)


def make_executor(
    prepared: PlannedModel, options: EngineOptions, pool: _native.Pool, weights: PackedWeights
) -> Executor:
    """The executor of a program with its weights."""
    program, capacity = prepared.program, capacity_of(prepared.plan, options)
    if options.backend == "numpy":
        return ReferenceExecutor(program, weights.floats, capacity)
    if options.backend == "torch":
        return TorchExecutor(program, weights.floats, capacity)
    kv_type = prepared.plan.kv_type
    return NativeExecutor(program, weights.matrices, weights.floats, capacity, pool=pool, kv_type=kv_type)
