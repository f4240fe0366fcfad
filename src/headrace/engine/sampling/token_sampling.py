"""From a step's logits to the tokens of its turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from msgspec.structs import replace

from headrace.engine.request_state import ChoiceState
from headrace.engine.sampling.constraints import Constraints, Masks
from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.errors import HeadraceError
from headrace.ops.value import Array
from headrace.sampling.sampler import SampleOutput, Sampler, SamplerState


def sample_slots(chunks: Iterable[ScheduledChunk], choices: Mapping[int, ChoiceState]) -> list[SampleSlot]:
    """The turns of the choices, by sequence id, that draw tokens in this step."""
    turns: list[SampleSlot] = []
    row = 0
    for chunk in chunks:
        row += chunk.rows
        choice = choices.get(chunk.sequence.id)
        if chunk.samples and choice is not None:
            turns.append(SampleSlot(choice, chunk, row - 1 - chunk.drafted))
    return turns


def _at_once(choice: ChoiceState) -> bool:
    return choice.row.position > 0 and choice.simple


class TokenSampling:
    """Draws the tokens of one engine's steps."""

    def __init__(self, sampler: Sampler, constraints: Constraints) -> None:
        self._sampler, self._constraints = sampler, constraints

    def draw(self, logits: Array, turns: list[SampleSlot], masks: Future[Masks] | None) -> None:
        """Draw for all turns: first one token each, then another where the draft agrees, and so on. `masks`
        are those of the first tokens; `logits` is scratch."""
        if len(logits) > len(turns) > 0 and all(_at_once(turn.choice) for turn in turns):
            self._draw_at_once(logits, turns)
            return
        while turns:
            rows = [turn.row for turn in turns]
            if len(rows) == 1:
                drawn_from = logits[rows[0] : rows[0] + 1]
            else:
                drawn_from = logits if len(rows) == len(logits) else logits[rows]
            sampled = self._sample(drawn_from, [turn.choice.row for turn in turns], masks)
            turns = [turn for index, turn in enumerate(turns) if turn.take(sampled, index)]
            masks = self._constraints.start([turn.choice for turn in turns])

    def _draw_at_once(self, logits: Array, turns: list[SampleSlot]) -> None:
        """The same in one call, where no token needs the loop."""
        rows = [turn.choice.row for turn in turns]
        drafts = [turn.chunk.sequence.draft[: turn.chunk.drafted] for turn in turns]
        drawn = self._sampler.sample_draft(logits, rows, [turn.row for turn in turns], drafts)
        for turn, tokens in zip(turns, drawn, strict=True):
            turn.take_all(tokens, self._sampler)

    def _sample(self, logits: Array, rows: list[SamplerState], masks: Future[Masks] | None) -> SampleOutput:
        """A token of each row; those without a mask have its error instead."""
        if masks is None:
            return self._sampler.sample(logits, rows)
        found = masks.result()
        allowed = [None if isinstance(mask, HeadraceError) else mask for mask in found]
        sampled = self._sampler.sample(logits, rows, allowed)
        refused = [mask if isinstance(mask, HeadraceError) else None for mask in found]
        errors = [mine or its for mine, its in zip(refused, sampled.errors, strict=True)]
        return replace(sampled, errors=tuple(errors))
