"""What a provider wants back with a call of a tool, and no surface has a place for: signed reasoning."""

from __future__ import annotations

from collections import OrderedDict

MAX_ENTRIES = 10_000
MAX_BYTES = 64 * 2**20
MAX_ENTRY_BYTES = 2**20


class CallMemory:
    """Bytes by the provider and the id of a call, which is random; the oldest are forgotten first. One for
    the process. What is one provider's means nothing to another, and is not for it.

    What is forgotten, as after a restart, is missing from the conversation: the dialects say what then.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0

    def keep(self, provider: str, call_id: str, data: bytes) -> None:
        """Remember what belongs to a call."""
        if len(data) > MAX_ENTRY_BYTES:
            return
        self._bytes -= len(self._kept.pop((provider, call_id), b""))
        self._kept[provider, call_id] = data
        self._bytes += len(data)
        while self._bytes > MAX_BYTES or len(self._kept) > MAX_ENTRIES:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= len(dropped)

    def find(self, provider: str, call_id: str) -> bytes | None:
        """What belongs to a call, None where it is not known."""
        return self._kept.get((provider, call_id))


CALLS = CallMemory()
