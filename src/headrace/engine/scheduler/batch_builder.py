"""From the scheduler's chunks to the arrays of a step."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_

import numpy as np
from msgspec import Struct, field

from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.sequence import Sequence
from headrace.kv.pages import pages_for
from headrace.ops.value import Ints
from headrace.program.step import Step

FEW = 64  # tokens that are quicker one by one than as arrays


class _PageRow(Struct):
    """A sequence's pages as an array, kept from step to step so that a step copies only what changed."""

    entries: Ints
    source: list[int] = field(default_factory=list[int])  # the very list that `entries` mirrors
    changed_from: int = 0  # pages before this index are known to be unchanged


class BatchBuilder:
    """Builds steps. Call `forget` when a sequence ends, so that its page row is dropped."""

    def __init__(self, *, context: int, page_tokens: int) -> None:
        self._max_pages = pages_for(context, page_tokens)
        self._page_tokens = page_tokens
        self._rows: dict[int, _PageRow] = {}

    def forget(self, sequence: Sequence) -> None:
        self._rows.pop(sequence.id, None)

    def build(self, chunks: Sequence_[ScheduledChunk], *, lookahead_tokens: int = 0) -> Step:
        """The step that computes the chunks; rows with logits come in the order of the chunks. The tables
        have the pages of `lookahead_tokens` tokens more."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts: list[int] = [0]
        rows: list[int] = []
        size = self._page_tokens
        page_rows = [self._page_row(chunk) for chunk in chunks]
        for chunk, page_row in zip(chunks, page_rows, strict=True):
            sequence, start, length = chunk.sequence, chunk.start, chunk.length
            if length == 1:
                tokens.append(sequence.tokens[start])
                positions.append(start)
                slots.append(sequence.pages[start // size] * size + start % size)
            elif length <= FEW:
                where = range(start, start + length)
                tokens += chunk.tokens
                positions += where
                slots += [sequence.pages[at // size] * size + at % size for at in where]
            else:
                where = np.arange(start, start + length)
                tokens += chunk.tokens
                positions += where.tolist()
                slots += (page_row.entries[where // size] * size + where % size).tolist()
            starts.append(len(tokens))
            rows += range(len(tokens) - chunk.rows, len(tokens))
        adapters = [chunk.sequence.adapter_slot for chunk in chunks]
        lengths = [chunk.start + chunk.length for chunk in chunks]
        return Step(
            tokens=_ints(tokens),
            positions=_ints(positions),
            slots=_ints(slots),
            query_starts=_ints(starts),
            lengths=_ints(lengths),
            block_tables=_block_tables(page_rows, [length + lookahead_tokens for length in lengths], size),
            rows=_ints(rows),
            state_slots=_ints([chunk.sequence.state_slot for chunk in chunks]),
            adapters=_ints(adapters) if any(slot >= 0 for slot in adapters) else None,
        )

    def _page_row(self, chunk: ScheduledChunk) -> _PageRow:
        pages = chunk.sequence.pages
        row = self._rows.get(chunk.sequence.id)
        if row is None:
            row = self._rows[chunk.sequence.id] = _PageRow(np.zeros(self._max_pages, np.int32))
        if row.source is not pages:  # (re)admitted
            row.source, row.changed_from = pages, 0
        first = row.changed_from
        if first < len(pages):
            row.entries[first : len(pages)] = pages[first:]
        # The prefix tree may swap pages that this chunk fills for equal ones; nothing before them changes.
        row.changed_from = chunk.start // self._page_tokens
        return row


def _block_tables(page_rows: list[_PageRow], lengths: list[int], page_tokens: int) -> Ints:
    width = pages_for(max(lengths), page_tokens)
    tables = np.zeros((len(page_rows), width), np.int32)
    for table, row, length in zip(tables, page_rows, lengths, strict=True):
        count = pages_for(length, page_tokens)
        table[:count] = row.entries[:count]
    return tables


def _ints(values: list[int]) -> Ints:
    return np.array(values, np.int32)
