"""What a provider wants back with a call of a tool, and no surface has a place for: signed reasoning."""

from __future__ import annotations

from collections import OrderedDict

MAX_ENTRIES = 10_000
MAX_BYTES = 64 * 2**20
MAX_ENTRY_BYTES = 2**20


class CallMemory:
    """Bytes by the id of a call, which is random; the oldest are forgotten first. One for the process.

    What is forgotten, as after a restart, is missing from the conversation: the dialects say what then.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def keep(self, call_id: str, data: bytes) -> None:
        """Remember what belongs to a call."""
        if len(data) > MAX_ENTRY_BYTES:
            return
        self._bytes -= len(self._kept.pop(call_id, b""))
        self._kept[call_id] = data
        self._bytes += len(data)
        while self._bytes > MAX_BYTES or len(self._kept) > MAX_ENTRIES:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= len(dropped)

    def find(self, call_id: str) -> bytes | None:
        """What belongs to a call, None where it is not known."""
        return self._kept.get(call_id)


CALLS = CallMemory()
