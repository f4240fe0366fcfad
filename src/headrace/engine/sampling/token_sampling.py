"""From a step's logits to the tokens of its slots."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from msgspec.structs import replace

from headrace.engine.request_state import ChoiceState
from headrace.engine.sampling.constraints import LATER, Constraints, Later, Masks
from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.errors import HeadraceError
from headrace.ops.value import Array
from headrace.sampling.sampler import SampleOutput, Sampler, SamplerState


def sample_slots(chunks: Iterable[ScheduledChunk], choices: Mapping[int, ChoiceState]) -> list[SampleSlot]:
    """The slots of the choices, by sequence id, that draw tokens in this step."""
    slots: list[SampleSlot] = []
    row = 0
    for chunk in chunks:
        row += chunk.rows
        choice = choices.get(chunk.sequence.id)
        if chunk.samples and choice is not None:
            slots.append(SampleSlot(choice, chunk, row - 1 - chunk.drafted))
    return slots


def _needs_only_logits(choice: ChoiceState) -> bool:
    return choice.row.position > 0 and choice.simple


class TokenSampling:
    """Samples the tokens of one engine's steps."""

    def __init__(self, sampler: Sampler, constraints: Constraints) -> None:
        self._sampler, self._constraints = sampler, constraints

    def sample(self, logits: Array, slots: list[SampleSlot], masks: Future[Masks] | None) -> None:
        """Draw for all slots: first one token each, then another where the draft agrees, and so on. `masks`
        are those of the first tokens; `logits` is scratch."""
        if len(logits) > len(slots) > 0 and all(_needs_only_logits(slot.choice) for slot in slots):
            self._sample_drafts(logits, slots)
            return
        while slots:
            rows = [slot.row for slot in slots]
            if len(rows) == 1:
                drawn_from = logits[rows[0] : rows[0] + 1]
            else:
                drawn_from = logits if len(rows) == len(logits) else logits[rows]
            sampled, late = self._sample(drawn_from, [slot.choice.row for slot in slots], masks)
            slots = self._accept(slots, sampled, late)
            masks = self._constraints.start([slot.choice for slot in slots])

    def _accept(self, slots: list[SampleSlot], sampled: SampleOutput, late: set[int]) -> list[SampleSlot]:
        """Let the slots take their tokens; those that go on. What grammars take for it is bounded as for
        masks."""
        start_s, limited = time.monotonic(), 0
        going_on: list[SampleSlot] = []
        for index, slot in enumerate(slots):
            if slot.choice.matcher is not None:
                if index in late or (limited and time.monotonic() - start_s > self._constraints.wait_s):
                    slot.put_off_first()
                    continue
                limited += 1
            if slot.accept(sampled, index):
                going_on.append(slot)
        return going_on

    def _sample_drafts(self, logits: Array, slots: list[SampleSlot]) -> None:
        """The same in one call, where no token needs the loop."""
        rows = [slot.choice.row for slot in slots]
        drafts = [slot.chunk.sequence.draft[: slot.chunk.drafted] for slot in slots]
        drawn = self._sampler.sample_draft(logits, rows, [slot.row for slot in slots], drafts)
        for slot, tokens in zip(slots, drawn, strict=True):
            slot.accept_all(tokens, self._sampler)

    def _sample(
        self, logits: Array, rows: list[SamplerState], masks: Future[Masks] | None
    ) -> tuple[SampleOutput, set[int]]:
        """A token of each row; those without a mask have its error instead. And the rows that no mask was
        waited for: their tokens mean nothing."""
        if masks is None:
            return self._sampler.sample(logits, rows), set()
        found = self._constraints.wait(masks)
        late = {index for index, mask in enumerate(found) if mask is LATER}
        allowed = [None if isinstance(mask, HeadraceError | Later) else mask for mask in found]
        sampled = self._sampler.sample(logits, rows, allowed)
        refused = [mask if isinstance(mask, HeadraceError) else None for mask in found]
        errors = [mine or its for mine, its in zip(refused, sampled.errors, strict=True)]
        return replace(sampled, errors=tuple(errors)), late
