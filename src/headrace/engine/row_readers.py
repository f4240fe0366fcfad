"""Rows of logits that are read otherwise than by sampling: scores of prompts, candidates of beams."""

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
    """Score prompts and find the candidates of beams in a step's logits, [rows, vocabulary]; the requests
    whose beams have new candidates, by id."""
    found: dict[str, RequestState] = {}
    row = 0
    for chunk in chunks:
        choice = active.choices.get(chunk.sequence.id)
        if choice is not None and choice.scores is not None and chunk.scores:
            choice.scores.add(sampler, logits, row, chunk.start, chunk.count)
        row += chunk.rows
        if chunk.samples and choice is None:
            state = active.beams[chunk.sequence.id]
            assert state.beams is not None
            state.beams.add_candidates(chunk.sequence, sampler, logits, row - 1)
            found[state.request_id] = state
    return found


def advance_beams(active: ActiveRequests, state: RequestState, now_s: float) -> None:
    """Extend a request's beams by their candidates, or end the request."""
    beams = state.beams
    assert beams is not None
    state.first_token_s = state.first_token_s or now_s
    if beams.error is not None:
        active.fail(state, beams.error)
        return
    try:
        change = beams.settle()
    except HeadraceError as error:  # of the tokenizer's decoder
        active.fail(state, error)
        return
    for sequence in change.ended:
        active.end_beam(sequence)
    active.add_beams(state, change.begun)
    if change.events:
        active.end(state, [*change.events, state.finished(now_s)])
