"""The most tokens that an attempt can come to, whatever the tokenizer, and the limit that makes it so.

Input: a token of a byte-level tokenizer, or of one that falls back to bytes, is at least one byte. So the
bytes of the request as it is sent bound all texts in it; what a template writes around them is added.
Output: the limit that the target is sent, for each choice, and the reasoning that it does not bound.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from headrace.inference.attempts import TokenCounts
from headrace.inference.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    ReasoningSettings,
    TextPair,
)
from headrace.providers.target import RemoteTarget

TEMPLATE_TOKENS = 1_024
"""What a template, or the provider's own instructions on tools, add to a request."""
MESSAGE_TOKENS = 32
"""What stands around a message, a tool or a prompt, besides its bytes."""
DEFAULT_OUTPUT = 4_096
"""The limit where neither the request nor the table has one: every model takes it."""
LARGEST_DEFAULT = 32_768
LEAST_OUTPUT = 16
"""A choice is not limited to less: some APIs refuse that."""
MOST_HIDDEN = 131_072
"""Of reasoning that is not shown, in a choice, where the table knows no maximum."""
_ALL_IS_SHOWN = ("", "deepseek", "template", "headrace")
LEAST_THINKING = 1_024
"""Anthropic's."""


class OutputBound(Struct, frozen=True):
    """Tokens of output: `each` is the limit of a choice, `beyond` how many of reasoning may come on top of
    it. `asked` is what the request says."""

    each: int
    beyond: int
    choices: int
    asked: int | None

    @property
    def most(self) -> int:
        """Of all choices."""
        return self.choices * (self.each + self.beyond)

    @property
    def least(self) -> int:
        """The least with which an attempt makes sense."""
        return self.choices * (min(self.each, LEAST_OUTPUT) + self.beyond)

    def limit(self, granted: int) -> int:
        """The limit of a choice where all together may have so many."""
        return min(self.each, granted // self.choices - self.beyond)


def choices_of(request: GenerationRequest) -> int:
    """Choices of all prompts together."""
    prompts = len(request.prompts) if isinstance(request, CompletionRequest) else 1
    return prompts * int(request.sampling.get("n") or 1)


def output_bound(request: GenerationRequest, target: RemoteTarget) -> OutputBound:
    """The bound of a request's output at a target."""
    most = target.max_output_tokens or _matching(target.row.max_output, target.model)
    asked = request.sampling.get("max_tokens")
    each = min(most or DEFAULT_OUTPUT, LARGEST_DEFAULT) if asked is None else min(asked, most or asked)
    beyond = _matching(target.row.reasoning_beyond, target.model) or 0
    candidates = max(1, int(request.sampling.get("best_of") or 1) // int(request.sampling.get("n") or 1))
    return OutputBound(each, beyond, choices_of(request) * candidates, asked)


def plausible(request: GenerationRequest, target: RemoteTarget, body: bytes, received: int) -> TokenCounts:
    """The most that a right usage has, all input and all output, by what was sent and the bytes received.

    What is written has come here, unless it is reasoning that the provider keeps: that is at most what its
    models write. Where a limit was sent the output is within that.
    """
    bound, row = output_bound(request, target), target.row
    most = target.max_output_tokens or _matching(row.max_output, target.model) or MOST_HIDDEN
    hidden = bound.choices * (most + bound.beyond)
    output = received + (0 if row.reasoning in _ALL_IS_SHOWN else hidden)
    if isinstance(request, ChatRequest) and request.prediction is not None:
        output += len(request.prediction.encode())
    elif bound.asked is not None:
        output = min(output, bound.most)
    return TokenCounts(input=input_bound(request, body, target), output=output)


def input_bound(request: GenerationRequest, body: bytes, target: RemoteTarget) -> int:
    """The most tokens of a request's input; `body` is what is sent. An image counts as the row says."""
    size, pieces, images = len(body), 1, 0
    if isinstance(request, ChatRequest):
        pieces = len(request.messages) + (0 if request.tools is None else len(request.tools.offered))
        shown = [image for message in request.messages for image in message.images]
        images = len(shown) * target.row.image_tokens
        size -= sum(len(one.url) - one.url.find(",") - 1 for one in shown if one.url.startswith("data:"))
    elif isinstance(request, CompletionRequest):
        pieces = len(request.prompts)
    if not body.isascii():  # some tokenizers write characters out before they cut
        size += max(0, len(unicodedata.normalize("NFKC", body.decode()).encode()) - len(body))
    return size + images + TEMPLATE_TOKENS + MESSAGE_TOKENS * pieces


def embedding_bound(request: EmbeddingRequest) -> int:
    """The most tokens of the inputs of a request for vectors or scores; every document is read with the
    query."""
    texts = [one for one in request.inputs if isinstance(one, str)]
    texts += [text for one in request.inputs if isinstance(one, TextPair) for text in (one.first, one.second)]
    tokens = sum(len(one) for one in request.inputs if isinstance(one, tuple))
    size = sum(max(len(one.encode("utf-8", "replace")), _normalized_bytes(one)) for one in texts)
    return size + tokens + MESSAGE_TOKENS * len(request.inputs)


def _normalized_bytes(text: str) -> int:
    """Of a text as some tokenizers write it out before they cut."""
    return 0 if text.isascii() else len(unicodedata.normalize("NFKC", text).encode("utf-8", "replace"))


class Limited(Struct, frozen=True):
    """A request with the limit that a budget gives it, and what its caller is told, by parameter. `is_less`:
    a budget with more left would have given more."""

    request: GenerationRequest
    warnings: Mapping[str, str]
    is_less: bool


def limited(request: GenerationRequest, target: RemoteTarget, bound: OutputBound, granted: int) -> Limited:
    """The request with a limit of its output for which `granted` tokens suffice."""
    limit, told = bound.limit(granted), dict[str, str]()
    if bound.asked is None:
        told["max_tokens"] = f"is {limit:,}: a budget bounds the output, and no limit was sent"
    elif limit < bound.asked:
        cause = "the budget has no more" if limit < bound.each else "the model writes no more"
        told["max_tokens"] = f"is {limit:,} instead of {bound.asked:,}: {cause}"
    request = replace(request, sampling={**request.sampling, "max_tokens": limit})
    is_less = limit < bound.each
    if not isinstance(request, ChatRequest):
        return Limited(request, told, is_less)
    if request.prediction is not None and not target.row.extra_fields:
        # What is predicted wrongly is billed beyond the limit.
        told["prediction"] = "has no effect: a budget bounds the output"
        request = replace(request, prediction=None)
    thinking = request.reasoning.max_tokens
    if target.row.reasoning == "anthropic" and thinking is not None and thinking >= limit:
        settings, said = _less_thinking(request.reasoning, limit)
        told["reasoning"] = said
        request = replace(request, reasoning=settings)
    return Limited(request, told, is_less)


def _less_thinking(settings: ReasoningSettings, limit: int) -> tuple[ReasoningSettings, str]:
    """Anthropic refuses a budget of reasoning that is not below the limit of the answer."""
    if limit // 2 < LEAST_THINKING:
        return ReasoningSettings(enabled=False), f"is off: it needs more than {limit:,} tokens of the budget"
    return replace(settings, max_tokens=limit // 2), f"has {limit // 2:,} tokens: the answer has {limit:,}"


def _matching(table: Mapping[str, int], model: str) -> int | None:
    """The figure of a model; its name may begin with its maker's."""
    names = (model, model.rpartition("/")[2])
    return next((n for pattern, n in table.items() if any(fnmatchcase(one, pattern) for one in names)), None)
