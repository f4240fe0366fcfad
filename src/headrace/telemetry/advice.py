"""Which levers would help a request most, and by how much: computed from what was measured, not guessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType, to_builtins

from headrace.engine.step_share import StepShare
from headrace.kv.pages import PAGE_TOKENS
from headrace.telemetry.explain_node import EngineTrace
from headrace.weights.formats import packed_nbytes

MIN_CACHE_TOKENS = 4 * PAGE_TOKENS
"""A prompt of fewer tokens that are not in the cache has no advice about it."""
MIN_SHARE = 0.05
"""Of the request's time: what saves less is not told."""
MIN_STEPS = 4
"""Of decoding; of fewer, one that was disturbed would say what all take."""
BATCH = 8
"""Requests at once that the batch is compared with."""
SMALLER: Mapping[str, str] = {"f32": "int8", "f16": "int8", "bf16": "int8", "int8": "int4"}
"""By the format of weights, the next that takes half of the bytes or less."""
_SIDE = 1024  # of a matrix whose bytes stand for all
_WHY: Mapping[str, str] = {
    "disabled": "the request switched the prefix cache off",
    "cold": "no prompt before it began alike",
    "diverged": "an earlier prompt began alike and went on otherwise: put what changes last",
    "evicted": "it was in the cache and had to go: give the KV cache more memory",
    "in_flight": "another request was reading it just then",
}


class Advice(Struct, frozen=True, omit_defaults=True):
    """A `lever` of "prefix_cache", "fewer_choices", "smaller_weights", "speculation_on", "speculation_off" or
    "bigger_batch", and what it is predicted to save: seconds of the request (of a bigger batch: of the
    machine), and what they are made of: tokens that need not be computed, steps, bytes of weights that a step
    does not read."""

    lever: str
    text: str
    saved_s: float | UnsetType = UNSET
    saved_tokens: int | UnsetType = UNSET
    saved_steps: int | UnsetType = UNSET
    saved_bytes: int | UnsetType = UNSET


def advice(trace: EngineTrace) -> list[dict[str, Any]]:
    """The levers of a prompt, that which saves it most first, as they stand in the details of its tree. What
    helps others beside it comes last."""
    least_s = MIN_SHARE * trace.timing.total_s
    found = [
        one for lever in _LEVERS for one in lever(trace) if one.saved_s is UNSET or one.saved_s >= least_s
    ]
    found.sort(key=lambda one: (one.lever == "bigger_batch", -(one.saved_s or 0.0)))
    return [to_builtins(one) for one in found]


def _prefix_cache(trace: EngineTrace) -> Iterator[Advice]:
    """What a prompt with the same beginning would find: full pages before the last token."""
    usage = trace.usage
    why = _WHY.get(usage.cache_miss_reason or "")
    found = (usage.prompt_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS - usage.cached_tokens
    read = [share for share in trace.shares if share.kind == "prefill"]
    tokens = sum(share.tokens for share in read)
    if why is None or found < MIN_CACHE_TOKENS or not tokens:
        return
    seconds = sum(share.seconds for share in read) * min(found / tokens, 1.0)
    text = f"with its {found:,} tokens in the prefix cache {_ms(seconds)} less: {why}"
    yield Advice("prefix_cache", text, seconds, saved_tokens=found)


def _fewer_choices(trace: EngineTrace) -> Iterator[Advice]:
    decode = _decode(trace)
    choices = 0
    if decode is not None:  # where a grammar leaves one token only, a step of one choice has several
        choices = round(min(decode.tokens, decode.rows) / max(decode.steps, 1))
    if decode is None or choices < 2 or decode.drafted:
        return
    saved = trace.usage.completion_tokens * (choices - 1) // choices
    around_s = decode.seconds - decode.run_s - decode.propose_s  # sampling, mostly: of each choice its part
    rows_s = decode.steps * (choices - 1) * trace.costs.row_s
    # What is computed while the weights are read costs nothing.
    rows_s = min(rows_s, max(decode.run_s - decode.steps * trace.costs.read_s, 0.0))
    seconds = rows_s + around_s * (choices - 1) / choices
    text = f"with one choice instead of about {choices} there are {saved:,} tokens less to generate"
    yield Advice("fewer_choices", text, min(seconds, decode.seconds) or UNSET, saved_tokens=saved)


def _smaller_weights(trace: EngineTrace) -> Iterator[Advice]:
    """What a step takes beyond what its rows compute is reading the weights, where they come from memory; a
    row is computed meanwhile, unless steps are mostly arithmetic. Out of the caches a step is bound by other
    things, and smaller weights may save nothing."""
    decode, smaller = _decode(trace), SMALLER.get(trace.weight_format)
    if decode is None or smaller is None or not trace.weight_bytes:
        return
    ratio = packed_nbytes(smaller, _SIDE, _SIDE) / packed_nbytes(trace.weight_format, _SIDE, _SIDE)
    if trace.smaller_bytes:
        ratio = trace.smaller_bytes / trace.weight_bytes
    saved = round(trace.weight_bytes * (1 - ratio))
    rows_s, hidden_s = decode.rows * trace.costs.row_s, decode.steps * trace.costs.row_s
    if rows_s < decode.run_s / 2:
        rows_s -= hidden_s
    reading_s = max(decode.run_s - rows_s, 0.0)
    text = (
        f"with weights in {smaller} instead of {trace.weight_format} up to {_ms(reading_s * (1 - ratio))} "
        f"less: each of {decode.steps:,} steps reads {trace.weight_bytes / 1e6:,.1f} MB of them, then "
        f"{(trace.weight_bytes - saved) / 1e6:,.1f} (--quantization {smaller}; answers may differ)"
    )
    yield Advice("smaller_weights", text, reading_s * (1 - ratio), saved_bytes=saved)


def _speculation(trace: EngineTrace) -> Iterator[Advice]:
    decode, replay, costs = _decode(trace), trace.replay, trace.costs
    if decode is None:
        return
    if replay is not None and replay.accepted and decode.tokens <= replay.tokens:  # of one choice
        step_s = decode.seconds / decode.steps
        seconds = replay.accepted * step_s - replay.drafted * costs.row_s
        text = (
            f"with speculation {_ms(seconds)} less: of {replay.drafted:,} drafted tokens {replay.accepted:,} "
            "would have been right, the text repeats itself (--speculative auto)"
        )
        yield Advice("speculation_on", text, seconds, saved_steps=replay.accepted)
    elif decode.drafted and costs.plain_s and decode.rows == decode.steps:
        seconds = decode.seconds - (decode.steps + decode.accepted) * costs.plain_s
        text = (
            f"without speculation {_ms(seconds)} less: {decode.accepted:,} of {decode.drafted:,} drafted "
            "tokens were right (--speculative off)"
        )
        yield Advice("speculation_off", text, seconds)


def _bigger_batch(trace: EngineTrace) -> Iterator[Advice]:
    """A step of several sequences reads the weights once for all."""
    decode, row_s = _decode(trace), trace.costs.row_s
    if decode is None or not row_s:
        return
    rows, step_s = decode.rows / decode.steps, decode.seconds / decode.steps
    batch = min(BATCH, trace.max_rows)
    if rows > batch / 2:
        return
    now_s, then_s = step_s / rows, (step_s + (batch - rows) * row_s) / batch
    so_far = f"{rows:.1f}".removesuffix(".0")
    text = (
        f"with {batch} requests at once instead of {so_far} a token takes {_ms(then_s)} of the machine "
        f"instead of {_ms(now_s)}: send what can wait together, or as a batch"
    )
    yield Advice("bigger_batch", text, decode.steps * (now_s - then_s))


def _decode(trace: EngineTrace) -> StepShare | None:
    """All steps that generate, as one; None where they are few."""
    found: StepShare | None = None
    for share in trace.shares:
        if share.kind == "decode":
            found = share if found is None else found.merged(share)
    return None if found is None or found.steps < MIN_STEPS else found


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.{2 if seconds < 0.01 else 1}f} ms"


_LEVERS = (_prefix_cache, _fewer_choices, _smaller_weights, _speculation, _bigger_batch)
