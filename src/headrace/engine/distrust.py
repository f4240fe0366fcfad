"""Sequences whose logits are not finite: what others may still share, and which are computed again."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.engine.request_state import RequestState
from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.scheduler.scheduler import Scheduler
from headrace.errors import NumericalError


def distrust(scheduler: Scheduler, slots: Iterable[SampleSlot], grouped: Iterable[RequestState]) -> set[int]:
    """Take the pages of sequences that fail out of the prefix cache. One that has pages of others, which may
    be what it fails for, is computed again without them instead: the ids of these."""
    again: set[int] = set()
    for slot in slots:
        if isinstance(slot.error, NumericalError):
            sequence = slot.choice.sequence
            scheduler.distrust(sequence)
            if slot.choice.scores is None and scheduler.restart(sequence):
                slot.error, slot.put_off = None, not slot.events
                again.add(sequence.id)
    for state in grouped:
        if state.group is not None and isinstance(state.group.error, NumericalError):
            for sequence in state.group.sequences:
                scheduler.distrust(sequence)
    return again
