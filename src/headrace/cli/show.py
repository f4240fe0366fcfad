"""`headrace show`: a model's properties, memory use, and speed limit on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from msgspec import to_builtins
from msgspec.structs import asdict

from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.model_argument import ModelArgument
from headrace.cli.terminal import JsonFlag, aside, print_json, print_table, size
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.errors import UsageError
from headrace.executors.cpu_cache import LEAST_CACHES, cache_bytes
from headrace.executors.machine_limits import DISTURBED
from headrace.loading.describe import ModelFacts, Speed, describe
from headrace.loading.model_card import about, card
from headrace.loading.options import engine_options
from headrace.weights.hub.bundled import BUNDLED_DEFAULT
from headrace.weights.hub.resolver import resolve

HELP = """Show a model's architecture, parameters, weight types, context, template and license.

Also shows, without loading the model, its memory use with these settings and the tokens per second that this
machine's measured limits permit.

\b
Examples:
  headrace show mini
  headrace show Qwen/Qwen3-0.6B --quantization int4 --max-model-len 4096
  headrace show mini --card
"""


@takes_settings(*MODEL_SETTINGS)
def command(
    model: ModelArgument = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure the machine's limits again.")] = False,
    whole_card: Annotated[bool, typer.Option("--card", help="Print the model's card instead.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Show it; see HELP."""
    if model is not None:
        fetch(model, settings)
    if whole_card:
        _print_card(model, settings)
        return
    facts = describe(model, engine_options(settings), measure=measure)
    if json:
        print_json(_as_json(facts))
        return
    print_table(_about(facts))
    print()
    header = ("STORED", "TYPE", "TENSORS", "PARAMETERS", "SIZE")
    rows = [
        (entry.kind, entry.type, f"{entry.tensors:,}", f"{entry.parameters:,}", size(entry.bytes))
        for entry in facts.stored
    ]
    print_table(rows, header=header)
    print()
    _print_plan(facts)
    _print_speed(facts)


def _print_card(model: str | None, settings: Settings) -> None:
    path = resolve(BUNDLED_DEFAULT if model is None else model, offline=settings.offline)
    text = card(path)
    if text is None:
        raise UsageError(f"{path} has no README.md: this model has no card")
    print(text)


def _as_json(facts: ModelFacts) -> dict[str, Any]:
    plan = None if facts.plan is None else to_builtins(facts.plan) | {"total_bytes": facts.plan.total_bytes}
    found = {name: to_builtins(value) for name, value in asdict(facts).items() if name != "path"}
    return found | {"path": str(facts.path), "plan": plan}


def _about(facts: ModelFacts) -> list[tuple[str, str]]:
    active = (
        f", {facts.active_parameters:,} active per token"
        if facts.active_parameters != facts.parameters
        else ""
    )
    unused = [("not used", ", ".join(facts.unused))] if facts.unused else []
    template = "no" if not facts.chat_template else "yes, with tools" if facts.reads_tools else "yes"
    return [
        ("name", facts.name),
        ("about", about(facts.path) or "no description"),
        ("architecture", facts.architecture),
        ("parameters", f"{facts.parameters:,}{active}"),
        ("layers", f"{facts.layers:,} of {facts.hidden:,}, {facts.heads:,} heads over {facts.kv_heads:,}"),
        ("context", f"{facts.context:,} tokens"),
        ("tokenizer", facts.tokenizer),
        ("chat template", template),
        *unused,
        ("license", facts.license or "unknown"),
        ("path", str(facts.path)),
    ]


def _print_plan(facts: ModelFacts) -> None:
    plan = facts.plan
    if plan is None:
        print(f"memory: {facts.plan_problem}")
        return
    print(
        f"memory as {', '.join(facts.runs_in)}, {plan.context:,} tokens of context, {plan.page_count:,} pages"
    )
    parts = {
        "weights": plan.weights_bytes,
        "keys, values": plan.kv_bytes,
        "states": plan.state_bytes,
        "activation": plan.activation_bytes,
        "base": plan.base_bytes,
        "total": plan.bytes_of_all,
    }
    if plan.process_bytes:
        parts[f"largest of {len(plan.process_bytes)} processes"] = plan.total_bytes
    print_table([(f"  {name}", size(nbytes)) for name, nbytes in parts.items()])


def _print_speed(facts: ModelFacts) -> None:
    speed = facts.speed
    if speed is None:
        return
    limits = speed.limits
    arithmetic = f"{limits.best_int8_per_s / 1e9:,.0f} int8, {limits.best_bf16_per_s / 1e9:,.0f} bf16 Gop/s"
    rows = [
        ("  bandwidth", f"{size(limits.read_bytes_per_s)}/s"),
        ("  arithmetic", arithmetic),
        ("  decode", _decode(facts, speed)),
        ("  prefill", f"{speed.prefill_tokens_per_s:,.0f} tokens/s ({speed.arithmetic})"),
    ]
    print(f"\nat most, by the limits of {limits.threads} threads ({limits.isa})")
    print_table(rows)
    if limits.disturbed:
        aside(DISTURBED)


def _decode(facts: ModelFacts, speed: Speed) -> str:
    assert facts.plan is not None
    if facts.plan.weight_bytes_per_token < LEAST_CACHES * cache_bytes():
        return "not bound by memory: the weights stay in the processor's caches"
    return f"{speed.decode_tokens_per_s:,.0f} tokens/s after {speed.context:,} tokens, one sequence"
