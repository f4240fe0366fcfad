"""The files of a batch that has ended: outputs and errors, line by line, and what all of it used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.errors import StoreError
from headrace.inference.batches.batch_lines import unfinished_line
from headrace.storage.batches import Batches, LineState, StoredBatch
from headrace.storage.files import PART_BYTES, Files
from headrace.storage.sql_store import SqlStore

LINES_AT_A_TIME = 256


class InputDetails(msgspec.Struct, frozen=True):
    """How much of the prompts came from the prefix cache."""

    cached_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    """How much of the answers was reasoning."""

    reasoning_tokens: int


class BatchUsage(msgspec.Struct, frozen=True):
    """Token counts of a whole batch."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


def publish(database: SqlStore, batch: StoredBatch, outcome: str) -> None:
    """Write the files of a batch none of whose lines will run any more, and end it.

    Part by part, so that others get at the store meanwhile; what an earlier attempt left is thrown away.
    StoreError where that was this one's, by a server that took over; nothing where that has ended it.
    """
    files, batches = Files(database), Batches(database)
    files.forget_unfinished(batch.id)
    outputs, errors = _Lines(files, batch, "output"), _Lines(files, batch, "error")
    used: Counter[str] = Counter()
    after = 0
    while lines := batches.ended_lines(batch.id, after=after, limit=LINES_AT_A_TIME):
        for line in lines:
            reply = unfinished_line(line, outcome) if line.reply is None else line.reply
            if line.state is LineState.COMPLETED:
                outputs.add(reply)
                used.update(_usage(reply))
            else:
                errors.add(reply)
        after = lines[-1].place
    outputs.flush()
    errors.flush()
    usage = BatchUsage(
        used["input"],
        InputDetails(used["cached"]),
        used["output"],
        OutputDetails(used["reasoning"]),
        used["input"] + used["output"],
    )
    with database.transaction():
        if not batches.publish(
            batch.id,
            output_file_id=outputs.file_id,
            error_file_id=errors.file_id,
            usage=msgspec.json.encode(usage).decode(),
        ):
            files.forget_unfinished(batch.id)
            return
        for lines_of in (outputs, errors):
            if lines_of.file_id is not None and not files.finish(lines_of.file_id):
                raise StoreError(f"another server writes the files of {batch.id}")


class _Lines:
    """A file that grows by lines; there is none where there are no lines."""

    def __init__(self, files: Files, batch: StoredBatch, kind: str) -> None:
        self._files, self._batch, self._kind = files, batch, kind
        self._held = bytearray()
        self._place = 0
        self.file_id: str | None = None

    def add(self, line: bytes) -> None:
        self._held += line
        if len(self._held) >= PART_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._held:
            return
        if self.file_id is None:
            self.file_id = self._files.begin(
                self._batch.owner,
                f"{self._batch.id}_{self._kind}.jsonl",
                "batch_output",
                self._batch.id,
                expires_after_s=self._batch.files_expire_after_s,
            )
        self._files.append(self.file_id, self._place, bytes(self._held))
        self._place += 1
        self._held.clear()


def _usage(reply: bytes) -> Mapping[str, int]:
    """The tokens of one reply, in the words of chat completions or of responses."""
    usage: dict[str, Any] = msgspec.json.decode(reply)["response"]["body"].get("usage") or {}
    none: dict[str, Any] = {}
    prompt = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or none
    answer = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or none
    return {
        "input": usage.get("prompt_tokens", usage.get("input_tokens", 0)),
        "output": usage.get("completion_tokens", usage.get("output_tokens", 0)),
        "cached": prompt.get("cached_tokens", 0),
        "reasoning": answer.get("reasoning_tokens", 0),
    }
