"""From a name to a planned model: resolve, open, record, plan the memory. No weight is read."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from headrace import _native
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.engine.client import MemoryPlan
from headrace.engine.speculative.draft_compatibility import check_pair
from headrace.errors import UsageError
from headrace.executors.kv_layers import KvLayers
from headrace.executors.native import is_coded
from headrace.loading.check_labels import check_labels
from headrace.loading.free_memory import free_memory_bytes
from headrace.loading.memory_plan import plan_memory
from headrace.loading.model_record import read_cached, read_record
from headrace.loading.options import EngineOptions
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.stage_plan import (
    ModelStage,
    RankOf,
    check_stages,
    cuts_of,
    staged_plan,
    stages_of,
)
from headrace.loading.text_assets import load_text_assets, served_name
from headrace.loading.tied_output import config_with_ties
from headrace.loading.unread_tensors import ADAPTERS, POOLER, check_unread
from headrace.loading.weight_specs import weight_specs
from headrace.models.config_classes import absent_sizes
from headrace.models.decoder_config import DecoderConfig
from headrace.models.registry import Model, find_model
from headrace.program.program import Program
from headrace.program.record import record
from headrace.program.reorder import reorder_inputs
from headrace.program.verify import verify
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.config_json import Config
from headrace.weights.fitted_head import encoder_folder
from headrace.weights.head import chosen_head
from headrace.weights.hub.bundled import BUNDLED_DEFAULT
from headrace.weights.hub.resolver import resolve
from headrace.weights.modules import read_dense
from headrace.weights.packing.packed_weights import WeightSpec
from headrace.weights.pooling import read_pooling

LOG = logging.getLogger("headrace.loading")
DRAFT_KV_SHARE, DRAFT_KV_BYTES = 0.05, 8 << 20
"""For the keys and values of a draft model: of the free memory, and at least."""


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
    kv: KvLayers | None = None  # what a calibration found for keys and values
    cuts: tuple[int, ...] = ()  # of the fused program, into stages
    stages: tuple[ModelStage, ...] = ()  # where the model is in several processes
    rank: RankOf | None = None  # of what this process runs
    fitted: Path | None = None  # the folder of a classifier on the vectors of this encoder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def draft_bytes(self, checkpoint: CheckpointReader) -> int:
        """Its bytes next to the model of `checkpoint` that it drafts for, which may share its weights."""
        return self.plan.own_bytes - (self.plan.weights_bytes if self.checkpoint is checkpoint else 0)

    def close(self) -> None:
        """Close the checkpoint, that of the draft model too."""
        self.checkpoint.close()
        if self.draft is not None:
            self.draft.close()


def prepare(name: str | None, options: EngineOptions, *, kv: KvLayers | None = None) -> PlannedModel:
    """Everything up to the memory plan; the caller closes the checkpoint. `kv` is in the place of what the
    model's record says of keys and values."""
    name = BUNDLED_DEFAULT if name is None else name
    folder = resolve(name, offline=options.offline)
    encoder = encoder_folder(folder, offline=options.offline)
    if encoder != folder:
        planned = prepare(str(encoder), options)
        return replace(planned, name=served_name(name, folder), fitted=folder)
    checkpoint = open_checkpoint(folder)
    try:
        text = load_text_assets(folder, checkpoint.metadata)
        name = served_name(name, folder)
        if options.named_draft is None:
            return prepare_checkpoint(checkpoint, options, name, folder, *text, kv=kv)
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
    kv: KvLayers | None = None,
) -> PlannedModel:
    """The same for an open checkpoint, which stays the caller's where this raises."""
    _check_isa()
    if absent := absent_sizes(checkpoint.config):
        LOG.warning("%s has no %s in its config: the defaults of its kind are used", name, ", ".join(absent))
    model, normalize = model_of(config_with_ties(checkpoint), folder, options)
    encodes = model.pooling is not None
    if encodes and (draft is not None or options.speculative_layers is not None):
        raise UsageError(f"{name} is an encoder, which generates nothing to draft: leave its draft out")

    def plan(model: Model, options: EngineOptions, draft: PlannedModel | None = None) -> PlannedModel:
        program, wanted = _recorded(checkpoint, model, options, folder)
        layers = kv_layers(folder, checkpoint, options) if kv is None else kv
        if layers is not None:
            layers.check(program)
        drafts = 0 if draft is None else draft.draft_bytes(checkpoint)
        memory = plan_memory(
            program,
            wanted,
            options,
            context=model.config.context,
            encodes=encodes,
            draft_bytes=drafts,
            kv=layers,
        )
        cuts, stages = (), ()
        if options.processes > 1:
            check_stages(options, encodes=encodes)
            cuts = cuts_of(program, wanted, layers, memory, options.pp)
            stages = stages_of(program, wanted, layers, cuts, options.tensor_parallel_size)
            memory = staged_plan(stages, memory, options)
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
            kv=layers,
            cuts=cuts,
            stages=stages,
        )

    if options.speculative_layers is not None:
        draft = plan(first_layers(model, options.speculative_layers), draft_options(options))
    planned = plan(model, options, draft)
    _warn_of_unused(name, check_unread(checkpoint, planned.program, model))
    return planned


def recorded(
    checkpoint: CheckpointReader, folder: Path, options: EngineOptions
) -> tuple[Program, tuple[WeightSpec, ...]]:
    """The program of a checkpoint, and the matrices to pack, as `prepare` has them."""
    model, _ = model_of(config_with_ties(checkpoint), folder, options)
    return _recorded(checkpoint, model, options, folder)


def _recorded(
    checkpoint: CheckpointReader, model: Model, options: EngineOptions, folder: Path
) -> tuple[Program, tuple[WeightSpec, ...]]:
    program = verify(record(model.define))
    check_labels(checkpoint, program, model.head)
    program = reorder_inputs(program, ProgramWeights(checkpoint, program).input_order)
    return program, weight_specs(program, ProgramWeights(checkpoint, program), options, folder)


def kv_layers(folder: Path, checkpoint: CheckpointReader, options: EngineOptions) -> KvLayers | None:
    """What a calibration found: beside the files, or on this machine. None where it has no use."""
    if options.kv_cache_dtype == "auto" or not is_coded(options.kv_cache_dtype):
        return None
    found = read_record(folder).kv
    return read_cached(options.cache_dir, checkpoint.fingerprint).kv if found is None else found


def _warn_of_unused(name: str, parts: tuple[str, ...]) -> None:
    """Say which heads the model does without. Nearly every BERT has a pooler that no embedder needs."""
    heads = [part for part in parts if part not in (ADAPTERS, POOLER)]
    if heads:
        LOG.warning(
            "%s is loaded without a head that its files hold (%s): it gives vectors; pooling='splade' makes"
            " sparse ones with a masked-LM head",
            name,
            ", ".join(heads),
        )
    if ADAPTERS in parts:
        LOG.warning("%s is loaded without its adapters of tasks, which are not supported", name)


def _check_isa() -> None:
    try:
        _native.isa()
    except RuntimeError as error:  # HEADRACE_ISA names one that this machine lacks
        raise UsageError(str(error)) from None


def draft_options(options: EngineOptions) -> EngineOptions:
    """How a draft model is loaded next to its model. Its keys and values have bytes of their own, so codes
    would only make worse drafts."""
    shared = max(int(free_memory_bytes() * DRAFT_KV_SHARE), DRAFT_KV_BYTES)
    kept = options.kv_cache_dtype
    return replace(
        options,
        speculative="off",
        pp=1,
        tensor_parallel_size=1,
        speculative_model=None,
        speculative_layers=None,
        kv_cache_memory=shared,
        kv_cache_dtype="auto" if kept != "auto" and is_coded(kept) else kept,
    )


def first_layers(model: Model, layers: int) -> Model:
    """The first layers of a model as a model of their own (as in Elhoushi et al. 2024, "LayerSkip");
    UsageError where it has fewer."""
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
                f"speculative_model '{draft_name}' keeps a state that cannot be undone: choose one that only"
                " attends",
                param="speculative_model",
            )
    except BaseException:
        draft.close()
        raise
    return draft


def model_of(config: Config, folder: Path, options: EngineOptions) -> tuple[Model, bool]:
    """The model, which encodes where the options or the files in its folder say so, and whether its vectors
    are brought to length 1."""
    is_folder = folder.is_dir()
    dense = read_dense(folder) if is_folder else ()
    if options.pooling not in ("auto", "splade"):
        model = find_model(config, context=options.max_model_len, pooling=options.pooling, dense=dense)
        return model, options.pooling != "none"
    head = chosen_head(options.pooling, folder, config)
    pooling = read_pooling(folder) if is_folder else None
    kind = None if pooling is None else pooling.kind
    model = find_model(config, context=options.max_model_len, pooling=kind, head=head, dense=dense)
    if head is not None:
        return model, head.kind == "late_interaction"
    return model, pooling is None or pooling.normalize
