"""What is refused before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.engine.request import Request
from headrace.errors import ContextLengthExceeded, InvalidRequest

MAX_PRIORITY = 100  # classes on either side of 0


def check_request(
    request: Request, *, vocabulary: int, longest: int, recurrent: bool = False, embedding_size: int = 0
) -> None:
    """Raise a typed error unless the request can run to its end: `longest` is prompt and output in tokens.

    `embedding_size` is that of EngineLimits.
    """
    _check_kind(request, embedding_size)
    count = len(request.prompt)
    if count == 0:
        raise InvalidRequest("the prompt has no tokens: give some text", param="prompt")
    asked = request.params.max_tokens
    least = 0 if request.embed is not None else asked or 1
    if count + least > longest:
        wanted = f"prompt has {count:,} tokens" + (f" and max_tokens is {asked:,}" if asked else "")
        raise ContextLengthExceeded(
            f"{wanted}, the limit is {longest:,}: shorten it or load with a larger --context",
            param="max_tokens" if asked and count < longest else "prompt",
        )
    _check_ids("prompt", request.prompt, vocabulary)
    _check_ids("logit_bias", request.params.logit_bias, vocabulary)
    _check_ids("stop_token_ids", request.params.stop_token_ids, vocabulary)
    _check_ids("allowed_token_ids", request.params.allowed_token_ids or (), vocabulary)
    if request.params.use_beam_search:
        _check_beams(request, recurrent)
    if request.deadline_s is not None and not request.deadline_s > 0:
        raise InvalidRequest(
            f"deadline_s is {request.deadline_s}, it must be more than 0 seconds", param="deadline_s"
        )
    if abs(request.priority) > MAX_PRIORITY:
        raise InvalidRequest(
            f"priority is {request.priority}, it must be from -{MAX_PRIORITY} to {MAX_PRIORITY}",
            param="priority",
        )


def _check_kind(request: Request, embedding_size: int) -> None:
    if request.embed is None and embedding_size:
        raise InvalidRequest(
            "this model makes vectors of texts (embeddings) and generates none: ask a model that does",
            param="model",
        )
    if request.embed is not None and not embedding_size:
        raise InvalidRequest(
            "this model generates text and makes no embeddings: ask one that does, or load it with pooling",
            param="model",
        )
    wanted = None if request.embed is None else request.embed.dimensions
    if wanted is not None and not 1 <= wanted <= embedding_size:
        raise InvalidRequest(
            f"dimensions is {wanted:,}, it this model's vectors have {embedding_size:,} numbers: ask for 1 to"
            f" {embedding_size:,}",
            param="dimensions",
        )


def _check_beams(request: Request, recurrent: bool) -> None:
    if request.constraint is not None:
        name = request.constraint.param or request.constraint.kind
        raise InvalidRequest(f"{name} cannot be combined with beam search: leave one out", param=name)
    if request.thinking is not None:
        raise InvalidRequest(
            "a budget for thinking cannot be combined with beam search: leave one out",
            param="thinking_token_budget",
        )
    if recurrent:
        raise InvalidRequest(
            "this model keeps a state of the whole text, which beams cannot share: leave use_beam_search out",
            param="use_beam_search",
        )


def _check_ids(param: str, ids: Iterable[int], vocabulary: int) -> None:
    for token in ids:
        if not 0 <= token < vocabulary:
            raise InvalidRequest(
                f"{param}: token {token} is not in the vocabulary of {vocabulary:,}", param=param
            )
