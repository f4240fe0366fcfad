"""Small schedulers, sequences for them, and steps in which every sampled token is 7."""

from __future__ import annotations

from headrace.engine.scheduler.scheduler import Scheduler
from headrace.engine.scheduler.sequence import Sequence

P = 4


def scheduler(
    pages: int = 64, budget: int = 64, slots: int = 8, ageing_s: float = 10.0, recurrent: bool = False
) -> Scheduler:
    return Scheduler(
        page_count=pages,
        max_batch_tokens=budget,
        max_num_seqs=slots,
        ageing_s=ageing_s,
        page_tokens=P,
        recurrent=recurrent,
    )


def sequence(id: int, prompt: int | list[int], room: int = 8, **fields: object) -> Sequence:
    """A prompt of so many tokens of its own (or these), and room for so many more."""
    tokens = [1000 * (id + 1) + i for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
    defaults: dict[str, object] = {"request_id": id, "arrival_s": float(id)}
    return Sequence(
        id=id,
        tokens=tokens,
        prompt_length=len(tokens),
        max_length=len(tokens) + room,
        **(defaults | fields),  # pyright: ignore
    )


def step(engine: Scheduler) -> list[tuple[int, int, int, bool]]:
    """One step, each sampled token is 7: (id, start, count, samples) of every chunk."""
    chunks = engine.schedule()
    engine.advance(chunks)
    for chunk in chunks:
        if chunk.samples:
            chunk.sequence.tokens.append(7)
    return [(c.sequence.id, c.start, c.count, c.samples) for c in chunks]


def crowd(engine: Scheduler, lengths: list[int], room: int, **fields: object) -> list[Sequence]:
    made = [sequence(id, length, room, **fields) for id, length in enumerate(lengths)]
    for one in made:
        engine.add(one)
    return made


def nearly_full() -> tuple[Scheduler, Sequence, Sequence]:
    """Two sequences that decode, and three pages that nobody uses."""
    engine = scheduler(pages=13)
    first, second = crowd(engine, [5, 5], room=40)
    step(engine)
    while engine.available_pages > 3:
        step(engine)
    return engine, first, second


def verify(engine: Scheduler, right: int) -> list[tuple[int, int, int]]:
    """One step in which so many drafted tokens turn out right, then a 7 comes: (id, tokens, drafted)."""
    chunks = engine.schedule()
    for chunk in chunks:
        if chunk.samples:
            chunk.sequence.tokens += [*chunk.sequence.draft[: min(right, chunk.drafted)], 7]
    engine.advance(chunks)
    return [(c.sequence.id, c.count, c.drafted) for c in chunks]
