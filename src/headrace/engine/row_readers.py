"""Rows of logits that are read otherwise than by sampling: scores of prompts, groups of sequences."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.engine.active_requests import ActiveRequests
from headrace.engine.request_state import RequestState
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.errors import HeadraceError
from headrace.ops.value import Array
from headrace.sampling.sampler import Sampler


def read_rows(
    active: ActiveRequests, sampler: Sampler, logits: Array, chunks: Iterable[ScheduledChunk]
) -> dict[str, RequestState]:
    """Score prompts and read groups of sequences in a step's logits, [rows, vocabulary]; the requests whose
    groups were read, by id."""
    found: dict[str, RequestState] = {}
    row = 0
    for chunk in chunks:
        choice = active.choices.get(chunk.sequence.id)
        if choice is not None and choice.scores is not None and chunk.scores:
            choice.scores.add(sampler, logits, row, chunk.start, chunk.count)
        if chunk.rows and choice is None:
            state = active.groups[chunk.sequence.id]
            assert state.group is not None
            state.group.read(chunk, sampler, logits, row)
            found[state.request_id] = state
        row += chunk.rows
    return found


def advance_group(active: ActiveRequests, state: RequestState, now_s: float) -> None:
    """Let a request's group go on, or end the request."""
    group = state.group
    assert group is not None
    state.first_token_s = state.first_token_s or now_s
    if group.error is not None:
        active.fail(state, group.error)
        return
    try:
        change = group.settle()
    except HeadraceError as error:  # of the tokenizer's decoder
        active.fail(state, error)
        return
    for sequence in change.ended:
        active.end_sequence(sequence)
    active.add_sequences(state, change.begun)
    if change.events:
        active.end(state, [*change.events, state.finished(now_s)])
