"""Which replica probably holds which beginnings of prompts: hashes of groups of pages."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from headrace.kv.pages import PAGE_TOKENS

GROUP_TOKENS = 4 * PAGE_TOKENS
"""Tokens per key of a live prompt. A longer group costs less and finds less of a prefix."""
_KEY_BYTES = 8


def group_keys(tokens: Sequence[int], salt: str, group_tokens: int = GROUP_TOKENS) -> tuple[int, ...]:
    """A key of each full group: a digest of the salt and all tokens to the group's end. The last token is
    never cached (kv/prefix_tree.py), so a group that ends with it has none."""
    digest = hashlib.blake2b(salt.encode(), digest_size=_KEY_BYTES)
    packed = array("q", tokens)
    keys: list[int] = []
    for end in range(group_tokens, len(tokens), group_tokens):
        digest.update(packed[end - group_tokens : end])
        keys.append(int.from_bytes(digest.copy().digest(), "little"))
    return tuple(keys)


class PrefixIndex:
    """The last keys that went to each replica, as many as its cache has room for.

    It follows what was sent to a replica and does not ask it. A wrong entry costs time, never correctness.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}  # key -> bits of replicas
        self._held: dict[int, OrderedDict[int, None]] = {}  # replica -> its keys, least recently used first
        self._room: dict[int, int] = {}

    def add(self, replica: int, room: int) -> None:
        """A replica, with an empty cache for so many keys."""
        self.remove(replica)
        self._held[replica], self._room[replica] = OrderedDict(), room

    def remove(self, replica: int) -> None:
        """A replica has gone, or lost its cache."""
        for key in self._held.pop(replica, ()):
            self._drop(replica, key)

    def held(self, replica: int) -> int:
        """How many keys it has."""
        return len(self._held[replica])

    def note(self, replica: int, keys: Sequence[int]) -> None:
        """A prompt with these keys went to the replica."""
        held, bit = self._held[replica], 1 << replica
        for key in reversed(keys):  # what comes first is shared most, so it is forgotten last
            if key in held:
                held.move_to_end(key)
            else:
                held[key] = None
                self._holders[key] = self._holders.get(key, 0) | bit
        while len(held) > self._room[replica]:
            self._drop(replica, held.popitem(last=False)[0])

    def matches(self, keys: Sequence[int]) -> dict[int, int]:
        """How many keys each replica holds of the beginning; those that hold none are left out."""
        found: dict[int, int] = {}
        bits = self._holders.get(keys[0], 0) if keys else 0
        for count in range(1, len(keys) + 1):
            left = bits & self._holders.get(keys[count], 0) if count < len(keys) else 0
            gone = bits & ~left
            while gone:
                lowest = gone & -gone
                found[lowest.bit_length() - 1] = count
                gone ^= lowest
            bits = left
            if not bits:
                break
        return found

    def _drop(self, replica: int, key: int) -> None:
        left = self._holders[key] & ~(1 << replica)
        if left:
            self._holders[key] = left
        else:
            del self._holders[key]
