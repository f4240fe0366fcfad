"""What a step costs by its number of tokens, learned from the steps themselves."""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from headrace._native import MultiStepResult

# Of a step's seconds: what another token adds at least, beyond all that is measured. Decoding is bound by
# memory, so it is little; too little rather than too much, because what seems not to pay is never measured.
PRIOR_SHARE = 0.03
MIN_PROMPT = 32  # tokens of a prompt that say what tokens cost
ENOUGH_S = 4e-3  # of steps without drafts in a row: the first ones find cold caches and sleeping threads
# Weight of the newest measurement. What disturbs a step makes it slower, never faster.
FIRST_WEIGHT, SLOWER_WEIGHT, FASTER_WEIGHT = 0.2, 0.1, 0.7
MAX_SLOWDOWN = 2.0  # times what was expected: so much at most does one measurement count for
NOTICED = 0.01  # of a measurement: less of a change can wait
BASELINE_EVERY, DRAFTS_S = 24, 16 * ENOUGH_S  # calls and seconds with drafts between baselines
MEASURE_EVERY = 8  # calls without drafts, of which one is measured
LARGEST = 64  # tokens; larger steps are bound by arithmetic and grow in proportion


class StepTiming(Struct, frozen=True):
    """Seconds of a call of `steps`, the first with `tokens`: `propose_s` for drafts, `run_s` in the executor
    and `loop_s` around it. `ran` is the result of a call of several."""

    tokens: int
    steps: int
    propose_s: float
    run_s: float
    loop_s: float
    ran: MultiStepResult | None = None


def followed(expected: float, seconds: float, slower_weight: float = SLOWER_WEIGHT) -> float:
    """What is expected after another measurement; one of something that was disturbed does not count for
    much."""
    change = min(seconds, MAX_SLOWDOWN * expected) - expected
    return expected + change * (FASTER_WEIGHT if change < 0 else slower_weight)


class StepCosts:
    """Seconds that steps run by their number of tokens, 1 to LARGEST, with straight lines between measured
    ones; and those of the loop around them: of a call of one step `loop_s`, and of each step where nothing is
    drafted `plain_loop_s`, which is less where several steps are one call.

    Forgetting follows the machine, whose speed changes, and the texts, whose growing lengths make attention
    slower.
    """

    __slots__ = (
        "_curve",
        "_drafts_seen",
        "_measured",
        "_prompt_s",
        "_seen_s",
        "_stale",
        "loop_s",
        "plain_loop_s",
    )

    def __init__(self) -> None:
        self.loop_s = self.plain_loop_s = 0.0
        self._drafts_seen = False
        self._prompt_s = 0.0  # of a token among many
        self._measured: dict[int, float] = {}
        self._seen_s = 0.0  # steps without drafts
        self._curve: list[float] = []
        self._stale = True

    @property
    def known(self) -> bool:
        """Whether enough has been measured."""
        return bool(self._measured) and self._seen_s >= ENOUGH_S

    def note(self, tokens: int, seconds: float) -> None:
        """A step ran so long."""
        if not 1 <= tokens <= LARGEST or seconds <= 0:
            return
        if tokens in self._measured:
            seconds = followed(self._measured[tokens], seconds)
        elif self._measured:
            seconds = followed(self.curve()[tokens], seconds, FIRST_WEIGHT)
        known = tokens in self._measured
        self._measured[tokens] = seconds
        # Computing the curve takes as long as a tenth of a short step.
        moved = not known or self._stale or abs(seconds - self._curve[tokens]) > NOTICED * self._curve[tokens]
        self._stale = moved

    def note_prompt(self, tokens: int, seconds: float) -> None:
        """A step with prompts ran so long: where the model lies in the caches, and many tokens therefore
        take much longer than one, it is known from there before drafts are checked. The first one says
        nothing, since it waits for the weights."""
        if tokens >= MIN_PROMPT and seconds > 0 and self._measured:
            before_s = self._prompt_s
            self._prompt_s = followed(before_s or seconds / tokens, seconds / tokens)
            self._stale = self._stale or abs(self._prompt_s - before_s) > NOTICED * before_s

    def note_loop(self, seconds: float) -> None:
        """The loop took so long around a call with drafts."""
        self.loop_s = followed(self.loop_s, seconds) if self._drafts_seen else seconds
        self._drafts_seen = True

    def note_plain(self, tokens: int, steps: int, run_s: float, loop_s: float) -> None:
        """A call of so many steps ran as if there were no drafts, and the loop took so long around it."""
        self.note(tokens, run_s / steps)
        self.plain_loop_s = followed(self.plain_loop_s or loop_s / steps, loop_s / steps)
        if not self._drafts_seen:  # then the best estimate is the same
            self.loop_s = followed(self.loop_s or loop_s, loop_s)
        self._seen_s += run_s + loop_s

    def seconds(self, tokens: int) -> float:
        """Of a step with so many tokens, LARGEST at most."""
        tokens = min(tokens, LARGEST)
        measured = self._measured.get(tokens)
        return self.curve()[tokens] if measured is None else measured

    def curve(self) -> list[float]:
        """Seconds by number of tokens: entry n is for n tokens, entry 0 has no meaning."""
        if self._stale:
            self._curve, self._stale = self._interpolated(), False
        return self._curve

    def _interpolated(self) -> list[float]:
        known = sorted(self._measured.items())
        first, seconds = known[0]
        curve = [seconds] * (first + 1)
        for (left, low), (right, high) in pairwise(known):
            high = max(high, low, curve[-1])  # more tokens do not take less: that is noise
            low = curve[-1]
            curve += [low + (high - low) * (n - left) / (right - left) for n in range(left + 1, right + 1)]
        left = LARGEST + 1 - len(curve)  # not measured
        by_prompts = (LARGEST * self._prompt_s - curve[-1]) / max(left, 1)
        slope = max(PRIOR_SHARE * seconds, _slope(curve, first), by_prompts)
        return curve + [curve[-1] + slope * (n + 1) for n in range(left)]


def _slope(curve: list[float], first: int) -> float:
    """Seconds that a token adds, over all that is measured."""
    return (curve[-1] - curve[first]) / max(len(curve) - 1 - first, 1)


class BaselineProbe:
    """When steps run without drafts to be measured, so that drafts are compared with the present speed:
    several in a row, since the one after a step with drafts finds cold caches."""

    __slots__ = ("_drafted_s", "_in_a_row", "_plain_s", "_unmeasured")

    def __init__(self) -> None:
        self._unmeasured = 0  # calls without drafts
        self._in_a_row, self._drafted_s = 0, 0.0  # calls with drafts, since the last baseline
        self._plain_s = 0.0  # of this baseline

    @property
    def due(self) -> bool:
        """Whether the next call is to be without drafts."""
        return self._in_a_row >= BASELINE_EVERY and self._drafted_s >= DRAFTS_S

    def note_drafts(self, seconds: float) -> None:
        """A call with drafts took so long."""
        self._in_a_row += 1
        self._drafted_s += seconds

    def put_off(self) -> None:
        """A call that was due cannot be measured; after many of these the measurement is given up."""
        self._in_a_row = (self._in_a_row + 1) % (2 * BASELINE_EVERY)

    def measures(self, *, is_due: bool) -> bool:
        """Whether to measure this call without drafts: each that is due, else one in MEASURE_EVERY."""
        self._unmeasured += 1
        if not is_due and self._unmeasured < MEASURE_EVERY:
            return False
        self._unmeasured = 0
        return True

    def note(self, seconds: float) -> None:
        """A call that was measured took so long."""
        self._plain_s += seconds
        if self._plain_s >= ENOUGH_S:
            self._in_a_row, self._drafted_s, self._plain_s = 0, 0.0, 0.0
