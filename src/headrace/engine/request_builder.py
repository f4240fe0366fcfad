"""From a request to its state: sequences, sampler state, detokenizer, constraints."""

from __future__ import annotations

import itertools
import secrets
from copy import copy

import numpy as np
from msgspec.structs import replace

from headrace.engine.request import EngineRequest, EventCallback
from headrace.engine.request_state import ChoiceState, RequestState
from headrace.engine.request_trace import RequestTrace
from headrace.engine.sampling.beam_group import BeamGroup
from headrace.engine.sampling.beam_search import BeamSearch
from headrace.engine.sampling.constraints import Constraints
from headrace.engine.sampling.continuation_scores import ContinuationScores
from headrace.engine.sampling.prompt_scores import PromptScores
from headrace.engine.sampling.token_limits import TokenLimits
from headrace.engine.scaling.controller import ScalingController
from headrace.engine.scheduler.sequence import Sequence
from headrace.grammar.matcher import SharedGrammar
from headrace.sampling.banned_strings import BannedStrings
from headrace.sampling.sampler import SamplerState
from headrace.tokenization.detokenizer import Detokenizer
from headrace.tokenization.stop_strings import StopMatcher
from headrace.tokenization.tokenizer import Tokenizer


class RequestBuilder:
    """Builds the states of one engine's requests. May be used from any thread."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, constraints: Constraints, longest: int) -> None:
        self._tokenizer, self._longest = tokenizer, longest
        self._constraints = constraints
        self._text_limits = TokenLimits(tokenizer, vocabulary)
        self._sequence_ids = itertools.count()

    def build(
        self,
        request: EngineRequest,
        request_id: str,
        sink: EventCallback,
        now_s: float,
        grammar: SharedGrammar | None,
        adapter_slot: int = -1,
    ) -> RequestState:
        """The state of a validated request whose constraint was compiled to `grammar`."""
        scaling = request.scaling
        ranks = scaling is not None and scaling.rank is not None and scaling.rank.needs_logprobs
        if ranks and request.params.logprobs is None:
            request = replace(request, params=replace(request.params, logprobs=0))
        given = request.params.seed
        seed = secrets.randbits(63) if given is None else given % (1 << 64)
        state = RequestState(request_id, request, sink, seed, now_s, RequestTrace(now_s))
        state.adapter_slot = adapter_slot
        if request.continuations:
            state.group = self._continuation_scores(state)
        elif request.params.use_beam_search:
            state.group = self._beam_group(state)
        else:
            self._add_choices(state, grammar)
        if scaling is not None:
            state.scaling = ScalingController(scaling, state.choices)
        return state

    def _add_choices(self, state: RequestState, grammar: SharedGrammar | None) -> None:
        request, params = state.request, state.request.params
        stops = StopMatcher(params.stop, params.include_stop_str_in_output)
        left = self._longest - len(request.prompt)
        most = min(params.max_tokens or left, left)
        matchers = self._constraints.matchers(request, grammar, most)
        fixed_mask = self._constraints.fixed(request)
        banned = self._text_limits.banned(params, self._constraints.visible_token_ids(request))
        for index, (matcher, row) in enumerate(zip(matchers, self._rows(state), strict=True)):
            choice = ChoiceState(
                self._sequence(state, index),
                row,
                self._detokenizer(request),
                copy(stops),
                self._stop_ids(request),
                state,
            )
            choice.matcher, choice.fixed_mask = matcher, fixed_mask
            choice.thinking = self._constraints.thinking(request)
            choice.banned = None if banned is None else BannedStrings(banned)
            if params.prompt_logprobs is not None and index == 0:
                choice.scores = PromptScores(request.prompt, params.prompt_logprobs)
            state.choices.append(choice)

    def _beam_group(self, state: RequestState) -> BeamGroup:
        request, params = state.request, state.request.params
        search = BeamSearch(
            width=params.n,
            max_tokens=min(params.max_tokens or self._longest, self._longest - len(request.prompt)),
            min_tokens=params.min_tokens,
            stop_ids=self._stop_ids(request),
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            tops=params.logprobs,
        )
        return BeamGroup(
            search,
            lambda tokens: self._sequence(state, 0, tokens),
            lambda: self._detokenizer(request),
        )

    def _continuation_scores(self, state: RequestState) -> ContinuationScores:
        prompt = state.request.prompt

        def sequence(after: tuple[int, ...], first_row: int) -> Sequence:
            made = self._sequence(state, 0, after)
            made.max_length = len(made.tokens)
            made.cost_tokens = len(after) if first_row >= len(prompt) else made.max_length
            made.scores = made.continues = True
            made.scored_from = first_row
            return made

        return ContinuationScores(prompt, state.request.continuations, sequence)

    def _stop_ids(self, request: EngineRequest) -> frozenset[int]:
        eos = frozenset[int]() if request.params.ignore_eos else self._tokenizer.eos_ids
        return eos | frozenset(request.params.stop_token_ids)

    def _detokenizer(self, request: EngineRequest) -> Detokenizer:
        return Detokenizer(
            self._tokenizer,
            visible_token_ids=self._constraints.visible_token_ids(request),
            # A grammar describes the text from its first byte, where a decoder would strip a space.
            is_continuation=request.is_continuation or request.constraint is not None,
        )

    def _sequence(self, state: RequestState, index: int, generated: tuple[int, ...] = ()) -> Sequence:
        request = state.request
        asked = request.params.max_tokens or self._longest
        max_length = min(len(request.prompt) + asked, self._longest)
        return Sequence(
            id=next(self._sequence_ids),
            request_id=state.request_id,
            choice=index,
            tokens=[*request.prompt, *generated],
            prompt_length=len(request.prompt),
            max_length=max_length,
            cache_salt=request.cache_salt,
            cache=request.cache,
            adapter=request.adapter,
            adapter_slot=state.adapter_slot,
            account=request.account,
            cost_tokens=0 if generated else max_length,  # a beam goes on with what was charged
            priority=request.priority,
            arrival_s=state.submitted_s,
            ttft_s=None if request.slo is None else request.slo.ttft_s,
            tpot_s=None if request.slo is None else request.slo.tpot_s,
            urgent=request.slo is None or request.slo.urgent,
            scores=request.params.prompt_logprobs is not None and index == 0 and len(request.prompt) > 1,
        )

    def _rows(self, state: RequestState) -> list[SamplerState]:
        """The sampling state of each choice."""
        request, params = state.request, state.request.params
        stop_ids, bad_words = self._stop_ids(request), self._text_limits.bad_words(params)
        breakers = self._text_limits.breakers(params, self._constraints.visible_token_ids(request))
        history = np.array([] if breakers is None else breakers.marked(request.prompt), np.int32)
        return [
            SamplerState(
                params,
                state.seed,
                index,
                request.prompt,
                stop_ids,
                bad_words,
                history,
                copy(breakers),
            )
            for index in range(params.n)
        ]
