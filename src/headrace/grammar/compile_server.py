"""The process in which grammars are compiled first: `python -m headrace.grammar.compile_server FD`.

Clients write schemas, patterns and grammars, and some take hours or gigabytes to compile. Here each is
compiled under limits, with the tokens of the model, before an engine compiles it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.grammar.compile import compile_grammar, first_lines, is_parser_error, new_state
from headrace.grammar.constraint import Constraint
from headrace.grammar.token_table import GrammarTokens, TokenTable
from headrace.isolation.fork_server import Ask, Work, serve
from headrace.isolation.limits import resident_bytes

if TYPE_CHECKING:
    from llguidance import LLMatcher

FIRST_TOKENS = 4  # that are tried
_NO_TEXT = 2**31 - 1


class Compiled(msgspec.Struct, frozen=True):
    """What became of a constraint: llguidance's JSON for it, about how much memory it takes and whether it
    compiles quickly; or why it cannot be compiled."""

    grammar: str = ""
    nbytes: int = 0
    quick: bool = True
    error: str | None = None
    param: str | None = None


class PlainTable(msgspec.Struct, frozen=True):
    """A TokenTable without its function."""

    tokens: list[bytes]
    special_ids: list[int]
    eos_ids: list[int]


def prepare(setup: bytes) -> Work:
    """Build the trie of the model's tokens."""
    plain = msgspec.msgpack.decode(setup, type=PlainTable)
    table = TokenTable(
        tokens=plain.tokens,
        special_ids=frozenset(plain.special_ids),
        eos_ids=frozenset(plain.eos_ids),
        # What is forced at the start of a grammar is cut greedily here: this is not the model's tokenizer.
        encode=lambda text: [],
    )
    tokens = GrammarTokens(table)
    lengths = np.array([len(token) or _NO_TEXT for token in table.tokens], np.int32)

    def compiled(payload: bytes, ask: Ask) -> bytes:
        constraint = msgspec.msgpack.decode(payload, type=Constraint)
        before = resident_bytes()
        try:
            grammar = compile_grammar(constraint, tokens.special_ids)
            state = new_state(constraint, grammar, tokens)
            _try_beginning(constraint, state, lengths)
        except HeadraceError as error:
            return msgspec.msgpack.encode(Compiled(error=error.message, param=error.param))
        nbytes = len(grammar) + max(resident_bytes() - before, 0)
        return msgspec.msgpack.encode(Compiled(grammar, nbytes))

    return compiled


def _try_beginning(constraint: Constraint, state: LLMatcher, lengths: NDArray[np.int32]) -> None:
    """Refuse what the parser could not follow for a few tokens: it would fail for everyone."""
    for _ in range(FIRST_TOKENS):
        mask = np.frombuffer(state.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(mask, count=len(lengths), bitorder="little")
        shortest = int(np.where(allowed, lengths, _NO_TEXT).argmin())
        if not state.consume_token(shortest) or state.is_stopped():
            break
    if is_parser_error(state.get_error()):
        raise constraint.error(f"cannot be followed: {first_lines(state.get_error())}")


if __name__ == "__main__":
    serve(prepare)
