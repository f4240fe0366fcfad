"""Constraints on a request's tokens: compiled at submission; a mask per step, found while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from typing import Final

from headrace.engine.request import EngineRequest
from headrace.engine.request_state import ChoiceState
from headrace.errors import HeadraceError, InvalidRequest
from headrace.grammar.constraint import Constraint
from headrace.grammar.matcher import Grammars, Matcher, SharedGrammar
from headrace.grammar.token_table import Mask, TokenTable, mask_of
from headrace.sampling.reasoning_budget import ReasoningState
from headrace.tokenization.token_bytes import Kind
from headrace.tokenization.tokenizer import Tokenizer

MASKS_S = 0.02
"""How long a step waits for masks after its logits are there, and for choices that take notice of their
tokens, once one of them has its own."""


class Later(Enum):
    """The step does not wait for this choice: it draws its token in a later one."""

    LATER = "later"


LATER: Final = Later.LATER

Masks = list[Mask | HeadraceError | Later | None]
"""For each row its mask, None where every token may be drawn, or why there is no mask."""


class Constraints:
    """The masks of one engine. `matchers` may be called from any thread, the others only by the loop."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, *, waits: bool = False) -> None:
        """`waits`: every step waits for all of its masks."""
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self.wait_s = math.inf if waits else MASKS_S
        self._awaited_s = math.inf  # since when the step waits
        self._grammars = Grammars(self._read_tokens)
        self._thread: ThreadPoolExecutor | None = None
        self.masks, self.mask_s = 0, 0.0  # found so far, and the seconds that took

    def compile(self, constraint: Constraint) -> Future[SharedGrammar]:
        """The compiled grammar. Fails with GrammarError where it cannot be compiled."""
        if self._tokenizer.pieces.kind is Kind.WHOLE:
            raise InvalidRequest(
                "this model's tokenizer has no bytes for single tokens, so its output cannot follow a "
                f"grammar: leave {constraint.name} out",
                param=constraint.param,
            )
        return self._grammars.compile(constraint)

    def matchers(
        self, request: EngineRequest, grammar: SharedGrammar | None, longest: int
    ) -> list[Matcher | None]:
        """One for each choice, or None for each. A choice has `longest` tokens at most."""
        constraint, n = request.constraint, request.params.n
        if constraint is None or grammar is None:
            return [None] * n
        budget = longest if constraint.finishes else None
        return [Matcher(self._grammars, constraint, grammar, budget=budget) for _ in range(n)]

    def thinking(self, request: EngineRequest) -> ReasoningState | None:
        """What bounds the reasoning of one choice."""
        if request.thinking is None:
            return None
        if self._tokenizer.pieces.kind is Kind.WHOLE:
            raise InvalidRequest(
                "this model's tokenizer has no bytes for single tokens, so its reasoning cannot be bounded: "
                "leave the budget for thinking out",
                param="thinking_token_budget",
            )
        return ReasoningState(request.thinking, self._tokenizer.token_bytes)

    def visible_token_ids(self, request: EngineRequest) -> frozenset[int]:
        """Special tokens that are part of the text: those that the request or its structural tag names."""
        constraint = request.constraint
        if constraint is None or constraint.kind != "structural_tag":
            return request.visible_token_ids
        named = self._grammars.tokens.special_ids.items()
        return request.visible_token_ids.union(token for text, token in named if text in constraint.text)

    def fixed(self, request: EngineRequest) -> Mask | None:
        """What limits every token of a request."""
        params = request.params
        mask = None
        if params.allowed_token_ids is not None:
            mask = mask_of(params.allowed_token_ids, self._vocabulary)
        if request.constraint is not None and params.ignore_eos:
            unended = ~mask_of(self._tokenizer.eos_ids, self._vocabulary)
            mask = unended if mask is None else mask & unended
        return mask

    def start(self, choices: Sequence[ChoiceState]) -> Future[Masks] | None:
        """Begin to find the masks of the choices' next tokens; None where no choice is limited."""
        if all(choice.free for choice in choices):
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-masks")
        self._awaited_s = math.inf
        return self._thread.submit(lambda: self._find(choices))

    def wait(self, masks: Future[Masks]) -> Masks:
        """The masks, as far as they are found in time."""
        self._awaited_s = time.monotonic()
        return masks.result()

    def close(self) -> None:
        """End the thread, and the process that compiles."""
        if self._thread is not None:
            self._thread.shutdown()
        self._grammars.close()

    def _find(self, choices: Sequence[ChoiceState]) -> Masks:
        """The masks that take little time first: so a choice whose grammar is hard to follow delays the
        others by one mask at most."""
        start_s = now_s = time.monotonic()
        masks: Masks = [None] * len(choices)
        found = 0
        for index in sorted(range(len(choices)), key=lambda index: choices[index].patience):
            choice = choices[index]
            if found and choice.matcher is not None and now_s - self._awaited_s > self.wait_s:
                masks[index] = LATER
                continue
            masks[index] = self._mask(choice)
            before_s, now_s = now_s, time.monotonic()
            choice.grammar_s = now_s - before_s
            found += masks[index] is not None
        self.masks += found
        self.mask_s += now_s - start_s
        return masks

    def _mask(self, choice: ChoiceState) -> Mask | HeadraceError | Later | None:
        ends = None if choice.thinking is None else choice.thinking.forced
        if ends is not None:  # whatever else limits the choice: it limits the answer, not its marks
            return mask_of([ends], self._vocabulary)
        mask = choice.fixed_mask
        if choice.banned is not None:
            banned = choice.banned.mask()
            mask = banned if mask is None else mask & banned
        if choice.matcher is not None:
            try:
                matching = choice.matcher.mask()
                while matching is None and math.isinf(self.wait_s):  # no token can be computed again
                    matching = choice.matcher.mask()
            except HeadraceError as error:
                return error
            if matching is None:
                return LATER
            mask = matching if mask is None else mask & matching
        return mask

    def _read_tokens(self) -> TokenTable:
        pieces, twin = self._tokenizer.pieces, self._tokenizer.twin()
        return TokenTable(
            tokens=pieces.bytes_of_all(self._vocabulary),
            special_ids=pieces.special_ids,
            eos_ids=self._tokenizer.eos_ids,
            encode=lambda text: twin.encode(text, add_special=False, parse_special=False),
        )
