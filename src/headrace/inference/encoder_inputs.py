"""What an encoder reads of a request: tokens with the prompt in front, within its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import ContextLengthExceeded, InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.requests import (
    EmbeddingRequest,
    ExpandedTokens,
    InputName,
    Prompt,
    TextPair,
    Truncation,
    as_truncation,
)
from headrace.tokenization.prompts import check_characters, prompt_ids

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

_PROMPTED = ("embed", "token_embed", "sparse_embed")


class EncoderInput(Struct, frozen=True):
    """Ids, where the second text of a pair begins, and how many tokens at the end no token sees."""

    ids: tuple[int, ...]
    pair_start: int | None = None
    unseen: int = 0


def encoder_inputs(request: EmbeddingRequest, model: LoadedModel, call: CallContext) -> list[EncoderInput]:
    """The inputs of a request, with warnings for what is cut. InvalidRequest for what cannot be honored,
    ContextLengthExceeded for an input beyond `max_tokens` that may not be cut."""
    before = _prompt_in_front(request, model, call)
    names = request.input_names or [
        InputName(f"text {index}")
        for index in range(request.first_input, request.first_input + len(request.inputs))
    ]
    return [
        _fitted(_encoder_input(one, before, model, name), one, name, request, model, call)
        for one, name in zip(request.inputs, names, strict=True)
    ]


def _prompt_in_front(request: EmbeddingRequest, model: LoadedModel, call: CallContext) -> str:
    """The text in front of texts that are embedded. InvalidRequest where a prompt is named for what takes
    none."""
    is_fitted = model.head is not None and model.head.kind == "fitted"
    takes_prompt = (is_fitted or request.task in _PROMPTED) and any(
        isinstance(one, str) for one in request.inputs
    )
    if takes_prompt and (request.prompt_name is None or all(isinstance(one, str) for one in request.inputs)):
        rules, purpose, name = model.input_rules, request.purpose, request.prompt_name
        if name is None and purpose is not None:
            name = next((one for one in purpose.prompts if one in rules.prompts), None)
            if name is None:
                known = ", ".join(sorted(rules.prompts)) or "none"
                why = f"the prompts of {model.name} are: {known}"
                call.warn(purpose.param, f"{purpose.param} {purpose.value!r} has no effect: {why}")
        return rules.prompt(name)
    if request.prompt_name is not None:
        raise InvalidRequest(
            "prompt_name goes with texts that are embedded, not with token ids, pairs or other tasks: leave"
            " it out",
            param="prompt_name",
        )
    if request.purpose is not None:
        call.warn(request.purpose.param, f"{request.purpose.param} has no effect: only texts get a prompt")
    return ""


def _encoder_input(
    given: Prompt | TextPair | ExpandedTokens, before: str, model: LoadedModel, name: InputName
) -> EncoderInput:
    if isinstance(given, ExpandedTokens):
        return EncoderInput(given.ids, unseen=given.unseen)
    if not isinstance(given, TextPair):
        prompt = before + given if isinstance(given, str) else given
        return EncoderInput(prompt_ids(prompt, model.tokenizer, model.context_length, name.param, name.what))
    check_characters(given.first, model.context_length, name.param, name.what)
    check_characters(given.second, model.context_length, name.param, name.what)
    ids, start = model.tokenizer.encode_pair(given.first, given.second)
    return EncoderInput(tuple(ids), start)


def _fitted(
    one: EncoderInput,
    given: Prompt | TextPair | ExpandedTokens,
    name: InputName,
    request: EmbeddingRequest,
    model: LoadedModel,
    call: CallContext,
) -> EncoderInput:
    """An input within the limits that the request sets; the engine refuses what exceeds the context."""
    context, count = model.context_length, len(one.ids)
    how = as_truncation(request.truncate)
    limit = min(context, request.max_tokens or context, _own_limit(how, context))
    if count <= limit or one.unseen:
        return one
    if how is not None:
        if how.side == "left" and isinstance(given, TextPair):
            param = "truncation_direction" if how.param == "truncate" else "truncation_side"
            raise InvalidRequest(
                f"{param} left is for single texts: of a pair the second text's end is cut", param=param
            )
        whose = "the model's" if limit == context else "max_tokens," if how.limit is None else f"{how.param},"
        call.warn(
            how.param,
            f"{name.what} has {count:,} tokens and was cut to {whose} {limit:,}: {count - limit:,} were"
            " left out",
        )
        return replace(one, ids=cut_ids(one.ids, limit, how.side, model))
    if limit == context and len(request.inputs) == 1 and not (request.first_input or request.input_names):
        return one  # the engine's refusal says more, and need not say which
    if limit == context:
        raise ContextLengthExceeded(
            f"{name.what} has {count:,} tokens, the limit is {limit:,}: shorten it or send truncate",
            param=name.param,
            prompt_tokens=count,
            context_length=limit,
        )
    raise ContextLengthExceeded(
        f"{name.what} has {count:,} tokens, max_tokens is {limit:,}: shorten it or send truncate",
        param=name.param,
    )


def _own_limit(how: Truncation | None, context: int) -> int:
    """The tokens that a truncation asks for; InvalidRequest for more than the context."""
    if how is None or how.limit is None:
        return context
    if how.limit > context:
        raise InvalidRequest(
            f"{how.param} is {how.limit:,}, the model's limit is {context:,}: send at most that, or -1",
            param=how.param,
        )
    return how.limit


def cut_ids(ids: tuple[int, ...], limit: int, side: str, model: LoadedModel) -> tuple[int, ...]:
    """`limit` of the tokens; a special token at the end, or cut at the beginning one there, stays there."""
    special = model.tokenizer.pieces.special_ids
    if side == "left":
        first = ids[:1] if ids[0] in special else ()
        return first + ids[len(ids) - limit + len(first) :]
    last = ids[-1:] if ids[-1] in special else ()
    return ids[: limit - len(last)] + last
