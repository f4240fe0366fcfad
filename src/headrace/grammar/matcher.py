"""Where an output stands in its grammar: masks, forced tokens and the end, through llguidance."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from headrace.grammar.compile import first_lines, is_parser_error, new_state
from headrace.grammar.compile_server import Compiled
from headrace.grammar.compiler import GrammarCompiler
from headrace.grammar.constraint import Constraint
from headrace.grammar.finishing import Finishing
from headrace.grammar.token_table import GrammarTokens, Mask, TokenTable, mask_of

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_CACHED = 64
MAX_CACHED_BYTES = 256 * 2**20


class SharedGrammar(Struct, frozen=True, eq=False):
    """A compiled grammar and its start."""

    compiled: Compiled
    state: LLMatcher


class Grammars:
    """Compiles constraints for one model and keeps the latest. Safe to share between threads.

    `read_tokens` is called when the first constraint comes.
    """

    def __init__(self, read_tokens: Callable[[], TokenTable]) -> None:
        self._read_tokens = read_tokens
        self._tokens: GrammarTokens | None = None
        self._building, self._lock = threading.Lock(), threading.Lock()
        self._compiler = GrammarCompiler(lambda: self._table, self._build)
        self._latest: OrderedDict[Constraint, SharedGrammar] = OrderedDict()

    @property
    def tokens(self) -> GrammarTokens:
        """The model's tokens."""
        with self._building:
            if self._tokens is None:
                self._tokens = GrammarTokens(self._table)
            return self._tokens

    @cached_property
    def _table(self) -> TokenTable:
        return self._read_tokens()

    def compile(self, constraint: Constraint) -> Future[SharedGrammar]:
        """The compiled grammar of a constraint. Fails as `GrammarCompiler.compile` does."""
        with self._lock:
            found = self._latest.get(constraint)
            if found is not None:
                self._latest.move_to_end(constraint)
                done: Future[SharedGrammar] = Future()
                done.set_result(found)
                return done
        compiling = self._compiler.compile(constraint)
        if self._tokens is None:
            self._compiler.meanwhile(lambda: self.tokens)  # the other process reads them too
        return compiling

    def matcher(self, constraint: Constraint) -> Matcher:
        """A matcher at the start of `constraint`; GrammarError where it cannot be compiled."""
        return Matcher(self, constraint, self.compile(constraint).result())

    def forget(self, constraint: Constraint) -> None:
        """Drop the shared copy, which has met a limit and would fail for everyone."""
        with self._lock:
            self._latest.pop(constraint, None)

    def close(self) -> None:
        """End the process that compiles; what is being compiled fails."""
        self._compiler.close()

    def _build(self, constraint: Constraint, compiled: Compiled) -> SharedGrammar:
        """What was compiled under limits is compiled again: it cannot be handed over."""
        shared = SharedGrammar(compiled, new_state(constraint, compiled.grammar, self.tokens))
        with self._lock:
            self._latest[constraint] = shared
            held = sum(one.compiled.nbytes for one in self._latest.values())
            while len(self._latest) > MAX_CACHED or (held > MAX_CACHED_BYTES and len(self._latest) > 1):
                held -= self._latest.popitem(last=False)[1].compiled.nbytes
        return shared


class Matcher:
    """One choice's place in its grammar. For one thread at a time.

    What comes out depends on the constraint and the accepted tokens alone: where copies that share a lexer
    run into a limit, the tokens are replayed on a grammar of its own, which decides. Only grammars that take
    long to compile have no second try: all other outputs would wait for it.
    """

    def __init__(
        self, grammars: Grammars, constraint: Constraint, shared: SharedGrammar, *, budget: int | None = None
    ) -> None:
        """With a `budget` the output ends within so many tokens, if it can."""
        self._grammars, self._constraint = grammars, constraint
        self._tokens = grammars.tokens
        self._marker = None if constraint.after is None else constraint.after.encode()
        self._tail = b""  # what has been generated lately, while the marker has not come
        self._shares = True
        # A copy that shares what its lexer has found out with all other copies.
        self._compiled, self._state = shared.compiled, shared.state.deep_copy()
        self._accepted: list[int] = []  # by the grammar
        self._forced: deque[int] = deque()
        self._finishing = None if budget is None else Finishing(self._tokens, budget)
        self._taken = 0  # tokens, with those before the grammar

    @property
    def finishing(self) -> bool:
        """Whether the output was sent to its end, because its tokens were running out."""
        return self._finishing is not None and self._finishing.began

    @property
    def finished(self) -> bool:
        """Whether the output is complete and nothing can follow it but its end."""
        return self._marker is None and not self._forced and self._state.is_stopped()

    @property
    def forced(self) -> int | None:
        """The next token, where the grammar leaves no choice."""
        return self._forced[0] if self._forced else None

    @property
    def forced_run(self) -> list[int]:
        """All of the next tokens that are certain."""
        return list(self._forced)

    def fitting(self, tokens: list[int]) -> int:
        """How many of the tokens may come next, one after the other, as far as that is known."""
        return len(tokens) if self._marker is not None else self._state.validate_tokens(tokens)

    def accept(self, token: int) -> None:
        """Take note of a token that was generated; GrammarError where it does not fit or a limit is met."""
        self._taken += 1
        if self._marker is not None:
            self._wait(token, self._marker)
            return
        self._consume(token)
        if self._forced:
            self._forced.popleft()
        if not self._forced and not self._state.is_stopped():
            self._force()

    def mask(self) -> Mask | None:
        """The tokens that may come next, None where that takes longer than a step should: ask again.
        GrammarError where a limit is met."""
        if self._marker is not None:
            return self._tokens.unended
        if not self._forced and self._finishing is not None:
            way = self._finishing.way(self._state, self._taken)
            if way is False:
                return None
            if way is not True:
                self._forced.extend(way)
        if self._forced:
            return mask_of([self._forced[0]], self._tokens.vocabulary)
        words = self._state.compute_bitmask()
        if self._state.is_error():
            self._replay()
            words = self._state.compute_bitmask()
            self._check()
        return np.frombuffer(words, np.uint32)[: -(-self._tokens.vocabulary // 32)]

    def _wait(self, token: int, marker: bytes) -> None:
        """The grammar starts where the marker ends, even if that is inside the token."""
        text = self._tail + self._tokens.tokens[token]
        place = text.find(marker)
        if place < 0:
            self._tail = text[-(len(marker) - 1) :] if len(marker) > 1 else b""
            return
        self._marker, self._tail = None, b""
        for rest in self._tokens.trie.tokenize_bytes(text[place + len(marker) :]):
            self._consume(rest)
        if not self._state.is_stopped():
            self._force()

    def _consume(self, token: int) -> None:
        self._accepted.append(token)
        if not self._state.consume_token(token):
            self._replay()

    def _force(self) -> None:
        self._forced.extend(self._state.compute_ff_tokens())
        if self._state.is_error():
            self._replay()
            self._forced.extend(self._state.compute_ff_tokens())
            self._check()

    def _replay(self) -> None:
        """Go on with a grammar that no other output has used, where that can help and is quick."""
        if self._shares and self._compiled.quick and not is_parser_error(self._state.get_error()):
            self._shares = False
            self._grammars.forget(self._constraint)
            self._state = new_state(self._constraint, self._compiled.grammar, self._tokens)
            for token in self._accepted:
                self._state.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._state.is_error():
            raise self._constraint.error(f"cannot be followed any further: {self._why()}")

    def _why(self) -> str:
        reason = self._state.stop_reason()
        return f"{first_lines(self._state.get_error())} ({reason})"
