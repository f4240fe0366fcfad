"""Cost of a scheduler step: schedule() and advance() with 32 decoding sequences, and admission."""

from __future__ import annotations

import statistics
import time

from headrace.engine.scheduler.scheduler import Scheduler
from headrace.engine.scheduler.sequence import Sequence

SEQUENCES = 32
STEPS = 2000
PROMPT_TOKENS = 2048


def decoding_step_us(queued: int) -> tuple[float, float]:
    """Median and 99th percentile of a step in microseconds, with `queued` more requests in the queue."""
    scheduler = Scheduler(page_count=32_768, max_batch_tokens=8192, max_num_seqs=SEQUENCES, ageing_s=10.0)
    for index in range(SEQUENCES + queued):
        prompt = [index * 7 + position for position in range(PROMPT_TOKENS)]
        scheduler.add(
            Sequence(
                id=index,
                request_id=index,
                tokens=prompt,
                prompt_length=len(prompt),
                max_length=PROMPT_TOKENS + STEPS + 64,
                arrival_s=float(index),
            )
        )
    times_us: list[float] = []
    while len(times_us) < STEPS:
        begin = time.perf_counter()
        chunks = scheduler.schedule()
        scheduler.advance(chunks)
        if sum(chunk.count for chunk in chunks) == SEQUENCES:
            times_us.append((time.perf_counter() - begin) * 1e6)
        for chunk in chunks:
            if chunk.samples:
                chunk.sequence.tokens.append(len(chunk.sequence.tokens))
    return statistics.median(times_us), statistics.quantiles(times_us, n=100)[98]


if __name__ == "__main__":
    for queued in (0, 1000):
        median, high = decoding_step_us(queued)
        print(f"{SEQUENCES} decoding, {queued:>4} queued: median {median:.1f} us, p99 {high:.1f} us per step")
