"""How much a step computes: until when its streams and the other models can wait."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from headrace.config.model_settings import SloPolicy
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.sequence import Sequence as TokenSequence
from headrace.engine.step_times import StepTimes, StepWork, WidthTimes, attended
from headrace.engine.turns import BATCH_PRIORITY, Tier, TurnAsk, tier_of

DEFAULT_TTFT_S, DEFAULT_TPOT_S = 0.5, 0.05
MIN_PREFILL_TOKENS = 16
"""A prompt progresses by so many tokens in a step at least, however late the streams are."""
SHORT_STEP_S = 4e-3
"""A step that takes no longer with all cores does well with a part of them, whatever waits for it: beside the
time per token that streams are made for it is little."""
STALE_S = 5.0
BATCH_STEP_S = 5e-3
"""Of class batch alone, while requests of other classes come: so long one of these waits for its end."""
URGENT_S = 5.0
"""So long after a request of another class such steps stay short: the next may come at any moment."""
BATCH_PAUSE_S = 0.25
"""So long class batch may stand still for others; then it has a step with them."""
MIN_SHARE = 2.0
"""A step with prefill may take so many times one without: a prompt beside streams gets half of the time."""


class PaceOptions(Struct, frozen=True, kw_only=True):
    """What a model's steps are measured against. `ttft_s` and `tpot_s` are its targets, None where there is
    none; its `share` of the machine counts beside other models, and a turn then takes `max_turn_s` at most.
    `slo_policy` is what becomes of a request that is predicted to miss `ttft_s`: it is served late, or
    refused here ("degrade": the model `fallback` answers it)."""

    share: float = 1.0
    max_turn_s: float = 0.04
    ttft_s: float | None = None
    tpot_s: float | None = None
    slo_policy: SloPolicy = "serve"
    fallback: str | None = None

    def refuses(self, own_s: float | None = None) -> bool:
        """Whether a request, with a target for the first token of its own or without, may be refused because
        it cannot make it."""
        return self.slo_policy != "serve" and self.target_s(own_s) is not None

    def target_s(self, own_s: float | None) -> float | None:
        """The target for the first token of a request with one of its own, or without."""
        return self.ttft_s if own_s is None else own_s

    @property
    def standard(self) -> Tier:
        """The class of its requests that name none: a model with targets is interactive."""
        return Tier.STANDARD if self.ttft_s is None and self.tpot_s is None else Tier.INTERACTIVE


class Pacing:
    """Says what a step may cost, and learns what steps cost. For the loop alone.

    A step with prefill ends before the deadline of the first stream (its last token plus the target of the
    time per token), or takes MIN_SHARE times one without where that is longer; while another model waits
    it takes at most `max_turn_s`. Without streams and other models nothing is cut.

    Where nobody gave a target, time is shared by heads: one stream beside fifteen prompts gets a sixteenth of
    it. Reading many prompts in parts as small as those of one would make steps with few rows of them all.
    """

    def __init__(self, options: PaceOptions) -> None:
        self.options, self.widths = options, WidthTimes()
        self._learned_s = -math.inf
        self._urgent_s = self._batch_s = -math.inf

    @property
    def times(self) -> StepTimes:
        """With as many threads as the next step has."""
        return self.widths.now

    def tier(self, sequence: TokenSequence) -> Tier:
        """The class of a sequence."""
        own = sequence.urgent and not (sequence.ttft_s is None and sequence.tpot_s is None)
        return tier_of(sequence.priority, standard=Tier.INTERACTIVE if own else self.options.standard)

    def holds_batch(self, sequences: Sequence[TokenSequence], now_s: float) -> bool:
        """Whether class batch has no part in the next step of these sequences: others want it, and batch has
        had one within BATCH_PAUSE_S."""
        batch = sum(sequence.priority >= BATCH_PRIORITY for sequence in sequences)
        if batch < len(sequences):
            self._urgent_s = now_s
        if 0 < batch < len(sequences) and now_s - self._batch_s < BATCH_PAUSE_S:
            return True
        if batch:
            self._batch_s = now_s
        return False

    def ask(self, sequences: Sequence[TokenSequence], last_token_s: float) -> TurnAsk:
        """For the next step of these sequences."""
        tier, deadline_s = Tier.BATCH, math.inf
        for sequence in sequences:
            own = self.tier(sequence)
            if own is not Tier.BATCH:
                tier = min(tier, own)
                deadline_s = min(deadline_s, self._due_s(sequence, last_token_s))
        expected_s = self.widths.shortest_s(_next_work(sequences))
        whole = tier is Tier.INTERACTIVE and expected_s > SHORT_STEP_S
        return TurnAsk(tier, deadline_s, 0.0 if math.isinf(expected_s) else expected_s, whole)

    def _due_s(self, sequence: TokenSequence, last_token_s: float) -> float:
        if sequence.pending == 1:
            return last_token_s + self._tpot_s(sequence)
        own, target_s = sequence.ttft_s, self.options.ttft_s or DEFAULT_TTFT_S
        return sequence.arrival_s + (own if own and (sequence.urgent or own > target_s) else target_s)

    def _tpot_s(self, sequence: TokenSequence) -> float:
        """Seconds per token that steps are made for."""
        own, target_s = sequence.tpot_s, self.options.tpot_s or DEFAULT_TPOT_S
        return own if own and (sequence.urgent or own > target_s) else target_s

    def prefill_tokens(
        self,
        running: Sequence[TokenSequence],
        *,
        admissible: int = 0,
        waited_s: float,
        contended: bool,
        most: int,
        now_s: float = math.inf,
    ) -> int:
        """Most tokens of prompts in the next step, up to `most`. The streams wait since `waited_s`; of the
        sequences that wait `admissible` ones have a place beside those that run. Class batch alone leaves
        time to others that were there shortly before `now_s`."""
        streams = [sequence for sequence in running if sequence.pending == 1]
        alone = bool(running) and all(one.priority >= BATCH_PRIORITY for one in running)
        yields = alone and now_s - self._urgent_s < URGENT_S
        if not self.times.known or not (streams or contended or yields):
            return most
        work = StepWork(0, len(streams), sum(sequence.computed + 1 for sequence in streams))
        limit_s = math.inf
        paced = [self._tpot_s(sequence) for sequence in streams if self.tier(sequence) is not Tier.BATCH]
        if paced:
            slack_s = min(paced) - waited_s
            prompts = len(running) - len(streams) + admissible
            limit_s = max(slack_s, self._share(streams, prompts) * self.times.seconds(work))
        if contended:
            limit_s = min(limit_s, self.options.max_turn_s)
        if yields:
            limit_s = min(limit_s, max(BATCH_STEP_S, MIN_SHARE * self.times.seconds(work)))
        if limit_s == math.inf:
            return most
        starts = [sequence.computed for sequence in running if sequence.pending > 1]
        fitting = self.times.prefill_tokens(limit_s, work, starts[0] if starts else 0, most)
        return min(max(fitting, MIN_PREFILL_TOKENS), most)

    def _share(self, streams: Sequence[TokenSequence], prompts: int) -> float:
        """So many times a step without prefill one with it may take."""
        for stream in streams:
            if stream.tpot_s is not None or self.tier(stream) is Tier.INTERACTIVE:
                return MIN_SHARE
        return max(MIN_SHARE, (len(streams) + prompts) / len(streams))

    def late_s(
        self,
        sequence: TokenSequence,
        running: Sequence[TokenSequence],
        waiting: Iterable[TokenSequence],
        most: int,
    ) -> float:
        """Predicted seconds to the first token of a newcomer where that is after its target; else 0.

        Prompts before it are read in steps of `prefill_tokens`. A place among the running sequences is
        assumed to be free by then.
        """
        target_s = self.options.target_s(sequence.ttft_s)
        if target_s is None or not self.times.known or self.tier(sequence) is Tier.BATCH:
            return 0.0
        tokens = sequence.pending + sum(other.pending for other in running if other.pending > 1)
        tokens += _waiting_tokens(other for other in waiting if other.priority <= sequence.priority)
        step_tokens = self.prefill_tokens(running, waited_s=0.0, contended=False, most=most)
        streams = [other for other in running if other.pending == 1]
        seen = sum(other.computed + 1 for other in streams)

        def step_s(prefill: int) -> float:
            pairs = seen + attended(sequence.pending // 2, prefill)
            return self.times.seconds(StepWork(prefill, len(streams), pairs))

        whole, rest = divmod(tokens, step_tokens)
        predicted_s = whole * step_s(step_tokens) + (step_s(rest) if rest else 0.0)
        return predicted_s if predicted_s > target_s else 0.0

    def is_stale(self, now_s: float) -> bool:
        """Whether steps may take another time by now than when they were measured: nothing was computed for
        STALE_S. Then a request must run, whatever is predicted, or all would be refused for ever."""
        return now_s - self._learned_s > STALE_S

    def learn(self, work: StepWork, seconds: float, now_s: float) -> None:
        """A step took so long, until now."""
        self.times.note(work, seconds)
        self._learned_s = now_s

    def predicted_s(self, work: StepWork) -> float:
        """What a step is expected to take; 0 where none like it was measured."""
        return self.times.seconds(work) if self.times.knows(work) else 0.0


def work_of(chunks: Iterable[ScheduledChunk]) -> StepWork:
    """What a step of these chunks computes."""
    prefill, rows, pairs = 0, 0, 0.0
    for chunk in chunks:
        if chunk.length == 1:
            rows += 1
        else:
            prefill += chunk.length
        pairs += attended(chunk.start, chunk.length)
    return StepWork(prefill, rows, pairs)


def _next_work(sequences: Iterable[TokenSequence]) -> StepWork:
    """Of a step with all that they have to compute."""
    prefill, rows, pairs = 0, 0, 0.0
    for sequence in sequences:
        pending = sequence.pending
        rows, prefill = (rows + 1, prefill) if pending == 1 else (rows, prefill + pending)
        pairs += attended(sequence.computed, pending)
    return StepWork(prefill, rows, pairs)


def _waiting_tokens(waiting: Iterable[TokenSequence]) -> int:
    """Tokens that are to be computed of them: the prompt of a request once for all its sequences."""
    tokens, seen = 0, set[int | str]()
    for sequence in waiting:
        shared = sequence.prompt_length - 1 if sequence.request_id in seen else 0
        tokens += max(0, sequence.pending - shared)
        seen.add(sequence.request_id)
    return tokens
