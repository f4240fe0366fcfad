"""L4, L5 and F5: aborts in every phase, aborts beside a prefill, and far too little memory."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from load_client import percentile

from headrace.engine.request import EngineRequest
from headrace.engine.scheduler.scheduler import MAX_PREEMPTIONS, Scheduler
from headrace.engine.scheduler.sequence import Sequence
from headrace.grammar.constraint import Constraint
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from tiny import Running

Show = Callable[[str], None]
FULL = pytest.mark.soak


def load(folder: Path, **options: object) -> LoadedModel:
    return load_model(str(folder), EngineOptions(threads=2, **options))  # type: ignore[arg-type]


def long_request(rng: random.Random, phase: str) -> EngineRequest:
    """One that stays in that phase for a while: a long prompt, or a long output."""
    prompt = tuple(rng.randrange(2, 80) for _ in range(250 if phase == "prefill" else rng.randint(1, 40)))
    params = SamplingParams(max_tokens=200, ignore_eos=True, seed=rng.randrange(2**32))
    constraint = Constraint("regex", "[!-9]{200}") if phase == "constrained" else None
    return EngineRequest(
        prompt=prompt, params=params, constraint=constraint, priority=5 * (phase == "queued")
    )


@pytest.mark.alone
@pytest.mark.parametrize("aborts", [1_000, pytest.param(10_000, marks=FULL)])
def test_l4_aborts_in_every_phase(
    tiny: Path, show: Show, monkeypatch: pytest.MonkeyPatch, aborts: int
) -> None:
    model = load(tiny, max_num_seqs=8, max_batch_tokens=16)
    engine, rng = model.engine, random.Random(4)
    # The first grammar starts the process that compiles, and meanwhile whole outputs would end unaborted.
    Running(engine, long_request(random.Random(0), "constrained")).finish()
    phases = ("queued", "prefill", "decode", "constrained")
    waits_ms: list[float] = []
    steps: list[int] = []
    asked_at: dict[str, int] = {}
    cancel = engine._admission.cancel

    def noted(request_id: str) -> None:
        steps.append(engine.status().steps - asked_at[request_id])
        cancel(request_id)

    monkeypatch.setattr(engine._admission, "cancel", noted)
    ended: Counter[str] = Counter()
    for _ in range(aborts // 10):
        flight = [(phase, Running(engine, long_request(rng, phase))) for phase in rng.choices(phases, k=10)]
        for phase, running in flight:
            if phase in ("decode", "constrained") and rng.random() < 0.5:
                running.next()
            at_s = time.perf_counter()
            with engine._queue._wake:  # the loop does not take the word before the look at the count
                running.ticket.cancel()
                asked_at[running.ticket.request_id] = engine.status().steps
            outcome = running.finish()
            waits_ms.append(1000 * (time.perf_counter() - at_s))
            ended[outcome.ends[0].reason] += 1
    status = engine.status()
    model.close()
    assert ended == {"cancelled": aborts}
    assert max(steps) <= 1, "more than the step that was under way"
    assert (status.running, status.waiting) == (0, 0)
    assert status.available_pages == status.page_count
    show(
        f"{aborts:,} aborts: ended after p50 {percentile(waits_ms, 0.5):.2f} ms, p99 "
        f"{percentile(waits_ms, 0.99):.2f} ms, at most {max(steps)} step; "
        f"all {status.page_count} pages are back"
    )


@pytest.mark.alone
@pytest.mark.parametrize("trials", [200, pytest.param(1_000, marks=FULL)])
def test_l5_an_abort_beside_a_prefill(tiny: Path, show: Show, trials: int) -> None:
    """B, which shares pages with A or not, gives what it gives alone."""
    model = load(tiny, max_num_seqs=4, max_batch_tokens=8)
    rng = random.Random(5)
    stem = tuple(rng.randrange(2, 80) for _ in range(60))
    other = tuple(rng.randrange(2, 80) for _ in range(60))
    params = SamplingParams(max_tokens=2, ignore_eos=True, seed=1)
    alone = {prompt: Running(model.engine, EngineRequest(prompt=prompt, params=params)).finish().bits
             for prompt in (stem, other)}  # fmt: skip
    reasons: Counter[str] = Counter()
    for _ in range(trials):
        prompt = rng.choice((stem, other))
        cache_salt = str(rng.randrange(2**32))  # nothing of it is in the prefix cache
        first = Running(
            model.engine,
            EngineRequest(
                prompt=stem, params=SamplingParams(max_tokens=100, ignore_eos=True), cache_salt=cache_salt
            ),
        )
        if rng.random() < 0.5:
            first.next()
        second = Running(model.engine, EngineRequest(prompt=prompt, params=params, cache_salt=cache_salt))
        first.ticket.cancel()
        assert second.finish().bits == alone[prompt]
        reasons[first.finish().ends[0].reason] += 1
    status = model.engine.status()
    model.close()
    assert status.available_pages == status.page_count
    assert reasons["cancelled"] > trials * 0.9  # few of A's hundred tokens are all there before the abort
    assert set(reasons) <= {"cancelled", "length"}
    show(f"{trials:,} trials ({reasons['cancelled']:,} aborted in time), none hung, every B as if alone")


@pytest.mark.parametrize("requests", [24, pytest.param(200, marks=FULL)])
def test_f5_a_tenth_of_the_memory(
    tiny: Path, show: Show, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    rng = random.Random(6)
    asked = [long_request(rng, "decode") for _ in range(requests)]
    model = load(tiny, max_num_seqs=24, max_batch_tokens=64, max_model_len=240)
    demand = model.plan.kv_bytes  # what 24 full contexts need
    alone = [Running(model.engine, request).finish().bits for request in asked]
    model.close()
    preempted: Counter[int] = Counter()
    preempt = Scheduler._preempt

    def counted(self: Scheduler, sequence: Sequence) -> None:
        preempted[sequence.id] += 1
        preempt(self, sequence)

    monkeypatch.setattr(Scheduler, "_preempt", counted)
    model = load(tiny, max_num_seqs=24, max_batch_tokens=64, max_model_len=240, kv_cache_memory=demand // 10)
    running = [Running(model.engine, request) for request in asked]
    contended = [one.finish().bits for one in running]
    pages = model.engine.status()
    model.close()
    assert contended == alone
    assert preempted, "the memory was enough"
    assert max(preempted.values()) <= MAX_PREEMPTIONS
    assert pages.available_pages == pages.page_count
    show(
        f"{requests} requests in {model.plan.kv_bytes:,} of {demand:,} bytes: {preempted.total()} "
        f"preemptions, at most {max(preempted.values())} of one request; every answer bit-equal"
    )
