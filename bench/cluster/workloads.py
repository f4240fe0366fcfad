"""Requests for replicas of small models: a trace with shorter prompts, conversations, and their arrivals."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from headrace.bench.serve.trace import BLOCK_TOKENS, TraceRequest, read_trace
from headrace.cluster.prefix_index import GROUP_TOKENS
from headrace.simulate.simulation import ReplicaShape, scaled_trace, simulate

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"
MOONCAKE = TRACES / "mooncake" / "synthetic_trace.jsonl.xz"
AZURE = TRACES / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
LONGEST = 800  # tokens of a prompt


def shrunk(longest: int = LONGEST, answer: int = 48) -> list[TraceRequest]:
    """Mooncake's trace with an eighth of its tokens, in blocks of GROUP_TOKENS, without longer prompts."""
    shrink = BLOCK_TOKENS // GROUP_TOKENS
    found: list[TraceRequest] = []
    for one in read_trace(MOONCAKE):
        prompt, output = one.prompt_tokens // shrink, min(answer, max(2, one.output_tokens // shrink))
        if 2 <= prompt <= longest:
            found.append(TraceRequest(one.at_s, prompt, output, one.blocks[: -(-prompt // GROUP_TOKENS)]))
    return found


def mooncake(count: int) -> list[TraceRequest]:
    """So many requests of it."""
    return scaled_trace(shrunk(), requests=count)


def chat(count: int) -> list[TraceRequest]:
    """Conversations that begin with one system prompt; each turn repeats the ones before it."""
    drawn, block = random.Random(11), iter(range(10**9))
    system = [next(block) for _ in range(2)]
    open_chats: list[list[int]] = []
    found: list[TraceRequest] = []
    at_s = 0.0
    for _ in range(count):
        at_s += drawn.expovariate(1.0)
        if len(open_chats) < 6 or drawn.random() < 0.2:
            open_chats.append(system[:])
        blocks = drawn.choice(open_chats)
        blocks.extend(next(block) for _ in range(drawn.randint(1, 2)))
        prompt = len(blocks) * GROUP_TOKENS - drawn.randrange(GROUP_TOKENS - 1)
        found.append(TraceRequest(at_s, prompt, drawn.randint(8, 48), tuple(blocks)))
        if len(blocks) * GROUP_TOKENS > LONGEST - 2 * GROUP_TOKENS:
            open_chats.remove(blocks)
    return found


def at_load(
    trace: Sequence[TraceRequest], shape: ReplicaShape, replicas: int, load: float
) -> tuple[list[TraceRequest], float]:
    """So fast that this share of what the replicas can do is asked for; and seconds per request then."""
    block_tokens = GROUP_TOKENS if any(one.blocks for one in trace) else None
    at_once = [replace(one, at_s=0.0) for one in trace]
    result = simulate(at_once, shape, replicas, "kv", block_tokens=block_tokens)
    whole_s = sum(one.output_tokens for one in trace) / result.throughput_tok_s / load
    return scaled_trace(trace, speed=max(trace[-1].at_s, 1e-9) / whole_s), whole_s / len(trace)


WORKLOADS: dict[str, Callable[[int], list[TraceRequest]]] = {"mooncake": mooncake, "chat": chat}
