"""Memory for the bodies of all requests that are being read or parsed, with a share for each client."""

from __future__ import annotations

from collections import Counter

from headrace.api.http.call_context import HttpCall
from headrace.errors import Overloaded

BODIES_LIMIT_BYTES = 256 * 2**20
SHARE = 0.5  # of it, that one key (without keys: one address) may take
SMALL_BYTES = 64 * 1024
"""Of each body these bytes do not count, so large bodies never keep small ones out: their number is limited,
and the connection holds as much in any case."""


class BodyMemory:
    """Counts bytes of bodies, of all clients and of each."""

    def __init__(self) -> None:
        self._all = 0
        self._of_client = Counter[str]()

    def hold(self, call: HttpCall, size: int) -> None:
        """Note that `size` bytes of the call's body have arrived; Overloaded where that is too much."""
        more = max(0, size - SMALL_BYTES) - call.body_bytes
        if more <= 0:
            return
        held = self._of_client[call.client]
        if self._all + more > BODIES_LIMIT_BYTES:
            raise _too_much(f"bodies of {self._all:,} bytes", BODIES_LIMIT_BYTES)
        if held + more > BODIES_LIMIT_BYTES * SHARE:
            raise _too_much(f"bodies of {held:,} bytes from this client", int(BODIES_LIMIT_BYTES * SHARE))
        self._all += more
        self._of_client[call.client] += more
        call.body_bytes += more

    def release(self, call: HttpCall) -> None:
        """The call's body is not needed any more."""
        self._all -= call.body_bytes
        self._of_client[call.client] -= call.body_bytes
        if not self._of_client[call.client]:
            del self._of_client[call.client]
        call.body_bytes = 0


def _too_much(held: str, limit: int) -> Overloaded:
    return Overloaded(
        f"{held} are being read, at most {limit:,} may be at a time: try again later", reason="body_bytes"
    )
