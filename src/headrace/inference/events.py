"""The events of an inference request, whatever computes it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.chat.tool_formats.events import AnswerEvent
from headrace.engine.request import Embedding, FinishReason, Selection, Timing, Usage
from headrace.sampling.params import SamplingParams


class ParameterWarning(Struct, frozen=True):
    """A parameter that was accepted and has no effect, or another one than usual."""

    param: str
    message: str


class GuardVerdict(Struct, frozen=True):
    """A guard has found `label` in what went in ("input") or came out ("output"); `action` is what was done:
    "block", "redact" or "flag"."""

    guard: str
    stage: str
    action: str
    label: str
    score: float


class TokenText(Struct, frozen=True):
    """A token, its bytes, and its natural-log probability before truncation.

    `rank` 1 is the most likely token, 0 unknown. `top` are the most likely tokens, best first.
    """

    token: int
    bytes: bytes
    logprob: float
    rank: int = 0
    top: tuple[TokenText, ...] = ()
    special: bool = False


class PreparedPrompt(Struct, frozen=True):
    """A prompt as the model reads it: its token ids, and of a completion its text; that of a
    chat where it was asked for.

    Of a prompt to a remote model nothing but an estimate of its length is known: `estimated_tokens`.
    """

    tokens: tuple[int, ...]
    text: str
    estimated_tokens: int = 0


class Prepared(Struct, frozen=True):
    """First event, before anything is computed: what the request comes to.

    `model` is the name that serves it, `params` are the sampling parameters in effect. `choices` are computed
    of each prompt. `fingerprint` stands for the model's weights and this version.
    """

    model: str
    prompts: tuple[PreparedPrompt, ...]
    params: SamplingParams | None = None
    choices: int = 1
    fingerprint: str | None = None


class Started(Struct, frozen=True):
    """Second event: the request was accepted and waits to be computed, or is being computed."""


class PromptScored(Struct, frozen=True):
    """Log probabilities of a prompt's tokens; that of the first is NaN."""

    prompt: int
    tokens: tuple[TokenText, ...]


class OutputDelta(Struct, frozen=True):
    """More of a choice: `parts` of text, reasoning and tool calls, and the tokens behind them.

    `parts` may be empty while text is buffered: bytes of an unfinished character, a possible stop string or
    the start of a tool call.
    """

    choice: int
    parts: Sequence[AnswerEvent]
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenText, ...] = ()


class OutputFinished(Struct, frozen=True):
    """A choice has ended, with the last `parts`. `stop` is the stop string or token id that ended it.

    `reason` is that of the engine, or "tool_calls". `text_reason` is the engine's alone. `score` is what
    beam search ranks by. `reasoning_tokens` counts the tokens up to the end of the reasoning.
    """

    choice: int
    parts: Sequence[AnswerEvent]
    reason: str
    text_reason: FinishReason
    stop: str | int | None = None
    score: float | None = None
    reasoning_tokens: int = 0


class ChoicesRanked(Struct, frozen=True):
    """The outcome of a vote or ranking among the choices of a prompt, which `selection.order` numbers from
    0."""

    prompt: int
    selection: Selection


class InputEmbedded(Struct, frozen=True):
    """The vectors of an input of an EmbeddingRequest."""

    input: int
    embedding: Embedding


class PromptContinued(Struct, frozen=True):
    """Of each continuation of a ScoringRequest the sum of the natural-log probabilities of its tokens after
    this prompt."""

    prompt: int
    logprobs: tuple[float, ...]


class PromptFinished(Struct, frozen=True):
    """Everything of a prompt or input has been sent. `seed` repeats its choices; None where it is not
    known."""

    prompt: int
    usage: Usage
    timing: Timing
    seed: int | None


class ToolCalled(Struct, frozen=True):
    """An agent calls a tool of this server; `arguments` is JSON. `server` is the MCP server that has it."""

    id: str
    name: str
    server: str | None
    arguments: str


class ToolReturned(Struct, frozen=True):
    """What the call has given: data, or an error."""

    id: str
    output: str
    is_error: bool = False


class ApprovalWanted(Struct, frozen=True):
    """A person has to agree to a call before it is made; the request ends with this. `was_begun`: it may have
    been made already, before the server stopped."""

    id: str
    name: str
    server: str | None
    arguments: str
    was_begun: bool = False


InferenceEvent = (
    Prepared
    | Started
    | PromptScored
    | OutputDelta
    | OutputFinished
    | ChoicesRanked
    | InputEmbedded
    | PromptContinued
    | PromptFinished
    | ToolCalled
    | ToolReturned
    | ApprovalWanted
)
