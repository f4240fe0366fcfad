"""The reasoning of one of Anthropic's answers, which has to go back with the results of its calls."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from headrace.providers.call_memory import MAX_ENTRY_BYTES


class _Block(Struct):
    type: str
    text: list[str] = field(default_factory=list[str])
    signature: list[str] = field(default_factory=list[str])


class Thoughts:
    """Blocks as they arrive, piece by piece. What is too large to be kept is not collected."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._open: _Block | None = None
        self._size = 0

    def begin(self, kind: str, text: str) -> None:
        """A block begins."""
        self._open = _Block(kind)
        if self._takes(kind):
            self._blocks.append(self._open)
        self.add(text)

    def add(self, text: str) -> None:
        """More of the last block."""
        if self._open is not None and text and self._takes(text):
            self._open.text.append(text)

    def sign(self, signature: str) -> None:
        """More of the signature of the last block."""
        if self._open is not None and signature:
            self._takes(signature)
            self._open.signature.append(signature)

    @property
    def signature(self) -> str:
        """Of the last block."""
        return "" if self._open is None else "".join(self._open.signature)

    def packed(self) -> bytes | None:
        """All blocks as the API wants them back; None where there is nothing to be kept."""
        if not self._blocks or self._size > MAX_ENTRY_BYTES:
            return None
        return msgspec.json.encode([_as_sent(one) for one in self._blocks])

    def _takes(self, text: str) -> bool:
        self._size += len(text)
        return self._size <= MAX_ENTRY_BYTES


def _as_sent(block: _Block) -> dict[str, str]:
    text = "".join(block.text)
    if block.type == "thinking":
        return {"type": block.type, "thinking": text, "signature": "".join(block.signature)}
    return {"type": block.type, "data": text}
