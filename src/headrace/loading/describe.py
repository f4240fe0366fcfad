"""What a model is and how fast it can be on this machine, found without loading a weight."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from headrace.engine.client import MemoryPlan
from headrace.errors import OutOfMemory
from headrace.executors.kv_layers import KvLayers
from headrace.executors.machine_limits import Limits, machine_limits
from headrace.executors.native import kv_bytes_per_page
from headrace.kv.pages import PAGE_TOKENS
from headrace.loading.check_labels import check_labels
from headrace.loading.loader import usable_cores
from headrace.loading.memory_plan import plan_memory
from headrace.loading.model_card import license
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import kv_layers, model_of
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.roofline import roofline
from headrace.loading.stage_plan import check_stages, cuts_of, staged_plan, stages_of
from headrace.loading.text_assets import load_text_assets, served_name
from headrace.loading.tied_output import config_with_ties
from headrace.loading.unread_tensors import check_unread
from headrace.loading.weight_specs import weight_specs
from headrace.models.decoder_config import DecoderConfig
from headrace.models.registry import Model
from headrace.program.program import Program
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.hub.bundled import BUNDLED_DEFAULT
from headrace.weights.hub.resolver import resolve
from headrace.weights.packing.packed_weights import WeightSpec
from headrace.weights.tensor_stats import StoredClass, stored_classes

_STATED_CONTEXT = 1024  # tokens before the one whose speed is predicted


class Speed(Struct, frozen=True, kw_only=True):
    """Tokens per second that this machine's limits allow: of one sequence after `context` tokens, which reads
    the weights and the cached keys and values; of a prompt, whose products take the peak of `arithmetic`."""

    context: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    arithmetic: str
    limits: Limits


class ModelFacts(Struct, frozen=True, kw_only=True):
    """`active_parameters` take part in a token: of experts only the chosen ones. `plan` and `speed` are None
    where the model does not fit, as `plan_problem` says; an encoder has no `speed`. `runs_in`: the formats
    of the matrices. `unused`: heads and adapters in an encoder's files that it does without."""

    name: str
    path: Path
    architecture: str
    parameters: int
    active_parameters: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    stored: tuple[StoredClass, ...]
    chat_template: bool
    reads_tools: bool
    tokenizer: str
    license: str | None
    runs_in: tuple[str, ...]
    plan: MemoryPlan | None
    plan_problem: str | None
    unused: tuple[str, ...]
    speed: Speed | None


def describe(name: str | None, options: EngineOptions, *, measure: bool = False) -> ModelFacts:
    """The facts of a model that is on this machine, as it would be loaded with these options.

    `measure`: measure the machine's limits again. Raises as `prepare` does, but for a plan that does not fit.
    """
    name = BUNDLED_DEFAULT if name is None else name
    path = resolve(name, offline=options.offline)
    with open_checkpoint(path) as checkpoint:
        model, _ = model_of(config_with_ties(checkpoint), path, options)
        program = verify(record(model.define))
        check_labels(checkpoint, program, model.head)
        unused = check_unread(checkpoint, program, model)
        wanted = weight_specs(program, ProgramWeights(checkpoint, program), options, path)
        tokenizer, template = load_text_assets(path, checkpoint.metadata)
        encodes = model.pooling is not None
        kv = kv_layers(path, checkpoint, options)
        plan, problem = _plan(program, wanted, options, model.config.context, encodes, kv)
        speed = None
        if plan is not None and not encodes:
            speed = _speed(program, wanted, plan, kv, options, measure)
        stored = stored_classes(checkpoint)
        return ModelFacts(
            name=served_name(name, path),
            path=path,
            architecture=model.model_type,
            parameters=sum(entry.parameters for entry in stored),
            active_parameters=_active(stored, model),
            layers=model.config.layers,
            hidden=model.config.hidden,
            heads=model.config.heads,
            kv_heads=model.config.kv_heads,
            vocabulary=model.config.vocabulary,
            context=model.config.context,
            stored=stored,
            chat_template=template is not None,
            reads_tools=template is not None and "tools" in template.reads,
            tokenizer=_tokenizer(tokenizer),
            license=license(path, checkpoint.metadata),
            runs_in=tuple(sorted({weight.format for weight in wanted})),
            plan=plan,
            plan_problem=problem,
            unused=unused,
            speed=speed,
        )


def _plan(
    program: Program,
    wanted: tuple[WeightSpec, ...],
    options: EngineOptions,
    context: int,
    encodes: bool,
    kv: KvLayers | None,
) -> tuple[MemoryPlan | None, str | None]:
    try:
        plan = plan_memory(program, wanted, options, context=context, encodes=encodes, kv=kv)
        if options.processes > 1:
            check_stages(options, encodes=encodes)
            cuts = cuts_of(program, wanted, kv, plan, options.pp)
            stages = stages_of(program, wanted, kv, cuts, options.tensor_parallel_size)
            plan = staged_plan(stages, plan, options)
        return plan, None
    except OutOfMemory as error:
        return None, error.message


def _active(stored: tuple[StoredClass, ...], model: Model) -> int:
    config = model.config
    experts = config.experts if isinstance(config, DecoderConfig) else None
    share = 1.0 if experts is None else experts.top_k / experts.count
    return round(sum(entry.parameters * (share if entry.kind == "experts" else 1) for entry in stored))


def _tokenizer(tokenizer: Tokenizer) -> str:
    return f"{tokenizer.kind}, {tokenizer.vocabulary_size:,} tokens"


def _speed(
    program: Program,
    wanted: tuple[WeightSpec, ...],
    plan: MemoryPlan,
    kv: KvLayers | None,
    options: EngineOptions,
    measure: bool,
) -> Speed:
    limits = machine_limits(options.threads or usable_cores(), options.cache_dir, measure=measure)
    context = min(_STATED_CONTEXT, plan.context)
    cached = kv_bytes_per_page(program, plan.kv_type, PAGE_TOKENS, kv) / PAGE_TOKENS * context
    limit = roofline(program, wanted)
    return Speed(
        context=context,
        decode_tokens_per_s=limits.read_bytes_per_s / (plan.weight_bytes_per_token + cached),
        prefill_tokens_per_s=limit.peak(limits) / limit.operations_per_prompt_token,
        arithmetic=limit.arithmetic,
        limits=limits,
    )
