"""Python interface of the native sampler: from logits to tokens for the rows of one step."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace import _native
from headrace.errors import HeadraceError, InvalidRequest, NumericalError
from headrace.sampling.banned_strings import SequenceBreakers
from headrace.sampling.deterministic_math import MAX_VOCABULARY
from headrace.sampling.params import SamplingParams
from headrace.sampling.penalties import MIN_REPETITION_PENALTY

Tops = tuple[tuple[int, float], ...]

# Fields that SamplerState converts or takes from elsewhere. All others have the name and value of a
# parameter.
CONVERTED_FIELDS = {
    "log_min_p",
    "repetition_penalty",
    "logit_bias",
    "bad_words",
    "ends",
    "logprobs",
    "seed",
    "choice",
}
SAME_FIELDS = tuple(name for name, _ in _native.sampler_fields() if name not in CONVERTED_FIELDS)


class SamplerState:
    """Sampling state of one choice of a request: parameters, position, token counts.

    `seed` is the request's seed, or the random one chosen for it; `choice` is the index below n. The
    position is the number of appended tokens, that is, the 0-based index of the next token. The repetition
    penalty counts prompt and appended tokens, presence and frequency penalties only appended ones.
    `eos_ids` are not drawn before min_tokens, unless ignore_eos. `bad_words` are token sequences. `history`
    is the prompt as DRY sees it (see penalties.BREAK), and `breakers`, not shared with other rows, finds
    sequence breakers in the appended tokens.
    """

    __slots__ = ("_breakers", "native")

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        choice: int,
        prompt_ids: Sequence[int],
        eos_ids: Collection[int],
        bad_words: Sequence[Sequence[int]] = (),
        history: Sequence[int] | NDArray[np.int32] = (),
        breakers: SequenceBreakers | None = None,
    ) -> None:
        settings = _native.SampleSettings()
        for name in SAME_FIELDS:
            setattr(settings, name, getattr(params, name))
        settings.log_min_p = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        settings.repetition_penalty = max(params.repetition_penalty, MIN_REPETITION_PENALTY)
        settings.logit_bias = list(params.logit_bias.items())
        settings.bad_words = [list(word) for word in bad_words]
        settings.ends = sorted({*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)})
        settings.logprobs = -1 if params.logprobs is None else params.logprobs
        settings.seed, settings.choice = seed % 2**64, choice
        self._breakers = breakers if params.dry_multiplier else None
        # Converting a long prompt takes milliseconds, and only this penalty uses it.
        counted = prompt_ids if params.repetition_penalty != 1.0 else ()
        self.native = _native.SampleRow(settings, np.array(counted, np.int32), np.asarray(history, np.int32))

    @property
    def position(self) -> int:
        """Number of tokens appended so far."""
        return self.native.position

    @property
    def mu(self) -> float:
        """Mirostat's bound on surprise for the next token, in bits."""
        return self.native.mu

    def for_drafts(self) -> SamplerState:
        """A copy that draws the same tokens, as long as both are appended the same tokens."""
        copy = SamplerState.__new__(SamplerState)
        copy._breakers, copy.native = None, self.native.for_drafts()
        return copy

    def append(self, token: int) -> None:
        """Record a generated token."""
        self.native.append(token, self._breaks(token))

    def _breaks(self, token: int) -> bool:
        return self._breakers is not None and self._breakers.push(token)


class SampleOutput(Struct, frozen=True):
    """The tokens of one step, by row.

    If `errors[r]` is not None, row r has no token (-1). `logprobs` is NaN and `tops` empty for rows that
    did not request them; `tops` are (token, log-probability), likeliest first, ties by lowest id.
    """

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    tops: tuple[Tops, ...]
    errors: tuple[HeadraceError | None, ...]


class Score(Struct, frozen=True):
    """A prompt token's natural-log probability and rank (1: the likeliest), and the likeliest tokens."""

    logprob: float
    rank: int
    top: Tops


class Sampler:
    """Draws one token per row of logits [R, vocabulary] on the threads of a pool.

    Tokens equal those of headrace.sampling.reference, bit for bit, regardless of the other rows, their
    order and the number of threads. Not thread-safe.
    """

    def __init__(self, vocabulary: int, pool: _native.Pool) -> None:
        if not 1 <= vocabulary <= MAX_VOCABULARY:
            raise InvalidRequest(
                f"a vocabulary of {vocabulary:,} tokens cannot be sampled, 1 to {MAX_VOCABULARY:,} can"
            )
        self.vocabulary = vocabulary
        self.native = _native.Sampler(vocabulary, pool)

    def sample(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[SamplerState],
        allowed: Sequence[NDArray[np.uint32] | None] | None = None,
    ) -> SampleOutput:
        """Draw; the rows' states do not change until `append`.

        `logits` is scratch: bias, penalties and masks are written into it. `allowed[r]`, if given, has bit
        `id % 32` of word `id // 32` set for each token that may be drawn.
        """
        tokens, logprobs, tops, faults = self.native.sample(logits, [row.native for row in rows], allowed)
        errors: list[HeadraceError | None] = [None] * len(rows)
        for row, fault in faults:
            errors[row] = self.error(fault)
        return SampleOutput(tokens, logprobs, tops, tuple(errors))

    def sample_draft(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[SamplerState],
        firsts: Sequence[int],
        drafts: Sequence[Sequence[int]],
    ) -> list[list[int]]:
        """Verify drafts. For each row state, draw a token from row firsts[i] of `logits`; as long as the
        draw equals the next token of drafts[i], draw another from the following row. Returns the drawn
        tokens, which are appended to the states; after an invalid row of logits, the negative number of
        an error. `logits` is scratch. Only for states that depend on nothing but tokens: see
        Choice.simple.
        """
        return self.native.sample_draft(logits, [row.native for row in rows], firsts, drafts)

    def score(
        self, logits: NDArray[np.float32], rows: Sequence[int], tokens: Sequence[int], tops: int
    ) -> list[Score]:
        """Log-probability of tokens[i] in row rows[i] of `logits`, with the `tops` likeliest tokens (0 to
        20). Raises NumericalError if a row is not finite.
        """
        found = self.native.score(logits, np.array(rows, np.int32), np.array(tokens, np.int32), tops)
        for *_, fault in found:
            if fault:
                raise self.error(fault)
        return [Score(logprob, rank, top) for logprob, rank, top, _ in found]

    def top(self, logits: NDArray[np.float32], row: int, count: int) -> list[tuple[int, float]]:
        """The `count` likeliest tokens of a row of `logits` with their log-probabilities, likeliest first;
        fewer if fewer can be drawn. Raises NumericalError if the row is not finite.
        """
        count = min(count, self.vocabulary)
        ids, logprobs = self.native.top(logits, np.array([row], np.int32), count)
        if ids[0] < 0:
            raise self.error(1)
        return [pair for pair in zip(ids.tolist(), logprobs.tolist(), strict=True) if pair[0] >= 0]

    def error(self, fault: int) -> HeadraceError:
        """The exception for an error number of native code, negated or not."""
        fault = abs(fault)
        if fault == 1:
            return NumericalError(
                f"the model gave logits that are not finite among its {self.vocabulary:,}:"
                " check the weights, or load them in a wider format"
            )
        if fault == 2:
            return InvalidRequest(
                "no token is left to draw: the allowed tokens are all stop tokens and fewer than min_tokens"
                " were generated, or none is allowed",
                param="min_tokens",
            )
        return InvalidRequest(
            f"logit_bias names a token that is not in the vocabulary of {self.vocabulary:,}",
            param="logit_bias",
        )
