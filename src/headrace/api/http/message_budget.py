"""How many bytes one HTTP message may have: its body, and everything else."""

from __future__ import annotations

from headrace.api.http.request_body import BODY_LIMIT_BYTES

HEADER_LIMIT_BYTES = 64 * 1024
CHUNK_BYTES = 16  # its length and line ends
LINGER_BYTES = 2**20  # of a body that came after its reply


class MessageBudget:
    """Counts the bytes of the message that is being received."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A message is over, another may begin. What of that came in the same read is not counted."""
        self._overhead = 0
        self._body = 0
        self._body_before = 0

    def received(self, size: int) -> None:
        """Bytes of any kind have come; they count as no body until `body` or `chunk` says otherwise."""
        self._overhead += size

    def chunk(self) -> None:
        """One of them was the beginning of a chunk."""
        self._overhead = max(0, self._overhead - CHUNK_BYTES)

    def body(self, size: int) -> None:
        """Of them were `size` bytes of body."""
        self._overhead = max(0, self._overhead - size)
        self._body += size

    def reply_sent(self) -> None:
        """The reply has been sent: what comes of the body now is not wanted."""
        self._body_before = self._body

    @property
    def exceeded(self) -> bool:
        """Whether request line, headers, chunk extensions and trailers are too large, give or take one
        read from the socket."""
        return self._overhead > HEADER_LIMIT_BYTES

    def body_exceeded(self, *, unwanted: bool) -> bool:
        """Whether so much of a body has come that no reader can want it. A reader's own limit is lower."""
        if unwanted:
            return self._body - self._body_before > LINGER_BYTES
        return self._body > BODY_LIMIT_BYTES + LINGER_BYTES
