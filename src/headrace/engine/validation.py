"""What is refused before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.engine.request import EngineRequest
from headrace.errors import ContextLengthExceeded, InvalidRequest

MAX_PRIORITY = 100  # classes on either side of 0


def validate_request(
    request: EngineRequest,
    *,
    vocabulary: int,
    longest: int,
    model_longest: int = 0,
    recurrent: bool = False,
    embedding_size: int = 0,
) -> None:
    """Raise a typed error unless the request can run to its end: `longest` is prompt and output in tokens.

    `embedding_size` and `model_longest` (`model_context_length`) are those of EngineLimits.
    """
    remedy = _remedy(longest, model_longest)
    _check_kind(request, embedding_size)
    count = len(request.prompt)
    given = "prompt" if request.embed is None else "input"  # as methods and bodies call it
    if count == 0:
        raise InvalidRequest("the prompt has no tokens: give some text", param=given)
    asked = request.params.max_tokens
    least = 0 if request.embed is not None else asked or 1
    if request.continuations:
        asked, least = None, _check_continuations(request, vocabulary)
    if count + least > longest:
        what = "prompt" if request.embed is None else "the text"
        wanted = f"{what} has {count:,} tokens" + (f" and max_tokens is {asked:,}" if asked else "")
        less = " or lower max_tokens" if asked else "" if request.embed is None else " or send truncate"
        raise ContextLengthExceeded(
            f"{wanted}, the limit is {longest:,}: shorten it{less}{remedy}",
            param="max_tokens" if asked and count < longest else given,
            prompt_tokens=count,
            context_length=longest,
        )
    _check_ids(given, request.prompt, vocabulary)
    _check_ids("logit_bias", request.params.logit_bias, vocabulary)
    _check_ids("stop_token_ids", request.params.stop_token_ids, vocabulary)
    _check_ids("allowed_token_ids", request.params.allowed_token_ids or (), vocabulary)
    if request.params.use_beam_search:
        _check_beams(request, recurrent)
    if request.constraint is not None and request.constraint.finishes:
        _check_finishing(request)
    if request.scaling is not None:
        _check_total(request)
    if request.thinking is not None and request.thinking.min_tokens:
        _check_least_thinking(request, longest, remedy)
    if request.deadline_s is not None and not request.deadline_s > 0:
        raise InvalidRequest(
            f"deadline_s is {request.deadline_s}, it must be more than 0 seconds", param="deadline_s"
        )
    if abs(request.priority) > MAX_PRIORITY:
        raise InvalidRequest(
            f"priority is {request.priority}, it must be from -{MAX_PRIORITY} to {MAX_PRIORITY}",
            param="priority",
        )


def _check_kind(request: EngineRequest, embedding_size: int) -> None:
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
            f"dimensions is {wanted:,}, this model's vectors have {embedding_size:,} numbers: ask for 1 to"
            f" {embedding_size:,}",
            param="dimensions",
        )


def _check_continuations(request: EngineRequest, vocabulary: int) -> int:
    """Tokens of the longest."""
    if not all(request.continuations):
        raise InvalidRequest("a continuation has no tokens: give each some text", param="labels")
    for tokens in request.continuations:
        _check_ids("labels", tokens, vocabulary)
    return max(map(len, request.continuations))


def _check_beams(request: EngineRequest, recurrent: bool) -> None:
    if request.constraint is not None:
        name = request.constraint.name
        raise InvalidRequest(f"{name} cannot be combined with beam search: leave one out", param=name)
    if request.scaling is not None:
        raise InvalidRequest(
            "vote, best_by, best_of and max_total_tokens cannot be combined with beam search: leave them out",
            param="use_beam_search",
        )
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


def _check_finishing(request: EngineRequest) -> None:
    """Refuse what could forbid the tokens of a way to the end."""
    params = request.params
    given = {
        "ignore_eos": params.ignore_eos,
        "min_tokens": params.min_tokens,
        "allowed_token_ids": params.allowed_token_ids is not None,
        "bad_words": params.bad_words,
        "banned_strings": params.banned_strings,
        "max_total_tokens": request.scaling is not None and request.scaling.max_total_tokens,
    }
    for name, is_given in given.items():
        if is_given:
            raise InvalidRequest(
                f"finish_within_max_tokens cannot be combined with {name}: leave one of them out", param=name
            )


def _check_total(request: EngineRequest) -> None:
    params, most = request.params, request.scaling.max_total_tokens if request.scaling else None
    for name, least in (("n", params.n), ("min_tokens times n", params.min_tokens * params.n)):
        if most is not None and most < least:
            raise InvalidRequest(
                f"max_total_tokens ({most:,}) is smaller than {name} ({least:,}): change one of them",
                param="max_total_tokens",
            )


def _remedy(longest: int, model_longest: int) -> str:
    """What else helps where `longest` tokens are too few: only what the model can do."""
    if longest < model_longest:
        return f", or load with a larger --max-model-len (up to {model_longest:,})"
    return "" if model_longest else ", or load with a larger --max-model-len"


def _check_least_thinking(request: EngineRequest, longest: int, remedy: str) -> None:
    least = request.thinking.min_tokens if request.thinking else 0
    room = longest - len(request.prompt)
    if least > room:
        raise ContextLengthExceeded(
            f"min_thinking_tokens is {least:,} and the prompt has {len(request.prompt):,} tokens, the limit "
            f"is {longest:,}: ask for less{remedy}",
            param="min_thinking_tokens",
        )
    if request.params.max_tokens is not None and least > request.params.max_tokens:
        raise InvalidRequest(
            f"min_thinking_tokens ({least:,}) is larger than max_tokens ({request.params.max_tokens:,}): "
            "change one of them",
            param="min_thinking_tokens",
        )
    scaling = request.scaling
    if scaling is not None and scaling.rank is not None and scaling.rank.needs_logprobs:
        raise InvalidRequest(
            "min_thinking_tokens puts tokens into the output that the model did not choose, so it cannot be "
            "ranked by log-probability: leave best_by, best_of or min_thinking_tokens out",
            param="min_thinking_tokens",
        )
    if request.params.logprobs is not None:
        raise InvalidRequest(
            "min_thinking_tokens puts tokens into the output that the model did not choose, which have no "
            "logprobs: leave one of the two out",
            param="min_thinking_tokens",
        )


def _check_ids(param: str, ids: Iterable[int], vocabulary: int) -> None:
    # Most often all are fine, and there are thousands.
    known = list(ids)
    if not known or (min(known) >= 0 and max(known) < vocabulary):
        return
    for token in known:
        if not 0 <= token < vocabulary:
            raise InvalidRequest(
                f"{param}: token {token} is not in the vocabulary of {vocabulary:,}", param=param
            )
