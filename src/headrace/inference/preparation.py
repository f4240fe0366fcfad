"""From an inference request to engine requests: templates, tokens, parameters.

Nothing here belongs on the event loop, unless the request is small.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from headrace.chat.answer_span import AnswerSpan
from headrace.chat.literal_text import literal_ids
from headrace.chat.messages import left_out, message_texts, without_images
from headrace.chat.output_parser import OutputParser
from headrace.chat.prompt import ChatPrompt, prepare
from headrace.chat.templates.chat_template import missing_template
from headrace.engine.request import EmbedParams, EngineRequest
from headrace.engine.scaling.options import Scaling, scaling_of
from headrace.errors import ContextLengthExceeded, InvalidRequest, TemplateError
from headrace.grammar.constraint import Constraint
from headrace.inference.call_context import CallContext
from headrace.inference.encoder_inputs import cut_ids, encoder_inputs
from headrace.inference.output_constraint import OutputConstraint, chat_constraint, own_constraint
from headrace.inference.output_reader import OutputReader
from headrace.inference.reasoning import check_enabled, reasoning_budget, template_variables, warn_unread
from headrace.inference.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    InferenceRequest,
    Prompt,
    ScoringRequest,
)
from headrace.loading.answer_help import helping_constraint
from headrace.sampling.params import SamplingParams, with_defaults
from headrace.tokenization.infill import infill_prompt
from headrace.tokenization.prompts import check_characters, prompt_ids
from headrace.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

_NEVER = -100.0  # a logit bias of practically no probability, as OpenAI defines it


class PreparedRequest(Struct, frozen=True):
    """Engine requests in the order of the prompts, and the reader of their events."""

    requests: tuple[EngineRequest, ...]
    reader: OutputReader
    choices: int
    params: SamplingParams | None
    otherwise: Constraint | None = None
    """What takes the place of the requests' constraint where that cannot be compiled."""


def prepare_request(
    request: InferenceRequest, model: LoadedModel, call: CallContext, tool_format: str | None
) -> PreparedRequest:
    """Everything that `model` needs for `request`; InvalidRequest names what cannot be honored."""
    if isinstance(request, ChatRequest):
        return _chat(request, model, call, tool_format)
    if isinstance(request, CompletionRequest):
        return _completion(request, model, call)
    if isinstance(request, EmbeddingRequest):
        return _embedding(request, model, call)
    if isinstance(request, ScoringRequest):
        return _scoring(request, model, call)
    raise TypeError(f"no handler for {type(request).__name__}")


def chat_prompt(
    request: ChatRequest, model: LoadedModel, call: CallContext, tool_format: str | None
) -> ChatPrompt:
    """The rendered conversation of a request."""
    template = model.template
    if template is None:
        raise missing_template(model.name)
    without_images(request.messages)
    context = _context(request, model)
    texts = message_texts(request.messages)
    check_characters(texts, context, "messages")  # what cannot fit is not rendered first
    try:
        prompt = prepare(
            template,
            list(request.messages),
            use=request.tools,
            family=request.tool_format or tool_format,
            add_generation_prompt=request.add_generation_prompt and not request.continue_final_message,
            continue_final_message=request.continue_final_message,
            variables=template_variables(request, template, model.template_variables),
        )
    except TemplateError:
        _check_tokens(texts, context, model)  # the template's limits are not the cause then
        raise
    check_characters(prompt.text, context, "messages")
    check_enabled(request.reasoning, prompt, template, model.name, call)
    warn_unread(request, template, call)
    for index in left_out(request.messages, prompt.text):
        call.warn(
            f"messages[{index}]",
            f"the {request.messages[index].role} message has no effect: {model.name}'s chat template leaves"
            " it out; what the model must know belongs in the user's message",
        )
    return prompt


def chat_tokens(prompt: ChatPrompt, model: LoadedModel) -> tuple[int, ...]:
    """The tokens of a rendered conversation: the template writes the special ones, so none are added."""
    return tuple(model.tokenizer.encode(prompt.text, add_special=False))


def literal_tokens(
    request: ChatRequest, prompt: ChatPrompt, model: LoadedModel, call: CallContext
) -> tuple[int, ...]:
    """As `chat_tokens`; special tokens that messages spell are plain text."""
    return literal_ids(
        model.tokenizer,
        prompt.text,
        request.messages,
        lambda messages: chat_prompt(replace(request, messages=messages), model, call, None).text,
    )


def _check_tokens(text: str, context_length: int, model: LoadedModel) -> None:
    if len(text.encode("utf-8", "replace")) <= context_length:  # a token is at least a byte
        return
    count = len(model.tokenizer.encode(text, add_special=False, parse_special=False))
    if count > context_length:
        raise ContextLengthExceeded(
            f"messages have {count:,} tokens, the model's limit is {context_length:,}: shorten them",
            param="messages",
        )


def _chat(
    request: ChatRequest, model: LoadedModel, call: CallContext, tool_format: str | None
) -> PreparedRequest:
    with call.stage("template", messages=len(request.messages)):
        prompt = chat_prompt(request, model, call, tool_format)
    tokenizer, template = model.tokenizer, model.template
    assert template is not None
    with call.stage("tokenize", characters=len(prompt.text)):
        ids = literal_tokens(request, prompt, model, call) if request.literal else chat_tokens(prompt, model)
        tokens = _after(request.context, ids, tokenizer)
    tokens = _truncated(tokens, request, model, call)
    prediction: tuple[int, ...] = ()
    if request.prediction is not None:
        check_characters(request.prediction, model.context_length, "prediction")
        prediction = tuple(tokenizer.encode(request.prediction, add_special=False, parse_special=False))
    params = _params(request, model, len(tokens))
    matched = chat_constraint(request, prompt, params, model, call)
    if matched.constraint is None and not request.literal:
        matched = OutputConstraint(_help(request, prompt, params, model, call))
    if matched.constraint is None:
        params = _without(params, prompt.unwanted_token_ids(tokenizer))
    engine_request = EngineRequest(
        prompt=tokens,
        params=params,
        visible_token_ids=prompt.visible_token_ids(tokenizer),
        constraint=matched.constraint,
        thinking=reasoning_budget(request.reasoning, prompt, tokenizer, template),
        prediction=prediction,
        scaling=_scaling(request, prompt.answer_span),
        **_common(request, request.id, call),
    )
    choices = itertools.count()

    def new_parser() -> OutputParser | None:
        return None if prompt.plain else prompt.parser(f"{request.id}/{next(choices)}")

    reader = OutputReader(tokenizer, [tokens], params.n, new_parser)
    return PreparedRequest((engine_request,), reader, params.n, params, matched.otherwise)


def _help(
    request: ChatRequest, prompt: ChatPrompt, params: SamplingParams, model: LoadedModel, call: CallContext
) -> Constraint | None:
    """What the model's template asks for, where nothing else holds the answer."""
    if model.template is None or prompt.use is not None or prompt.is_continuation:
        return None
    if params.use_beam_search or params.ignore_eos:
        return None
    variables = {**model.template_variables, **(request.template_variables or {})}
    found, warning = helping_constraint(request.messages, model.template.reads, variables, model.folder)
    if warning:
        call.warn("messages", warning)
    return found


def _without(params: SamplingParams, ids: frozenset[int]) -> SamplingParams:
    """The parameters with `ids` ruled out, except those that the request itself allows or biases.

    Beams take no bias, so they may contain any token.
    """
    ids -= frozenset(params.allowed_token_ids or ())
    if not ids or params.use_beam_search:
        return params
    return replace(params, logit_bias=dict.fromkeys(sorted(ids), _NEVER) | dict(params.logit_bias))


def _completion(request: CompletionRequest, model: LoadedModel, call: CallContext) -> PreparedRequest:
    tokenizer = model.tokenizer
    stop_ids: tuple[int, ...] = ()
    if request.suffix:
        if request.truncate is not None:
            raise InvalidRequest(
                f"{request.truncate.param} does not go with suffix: leave one out",
                param=request.truncate.param,
            )
        filled = [_infill(model, prompt, request.suffix) for prompt in request.prompts]
        ids, stop_ids = [infill.ids for infill in filled], tuple(filled[0].end_ids)
    else:
        ids = [
            prompt_ids(prompt, model.tokenizer, model.context_length, "prompt") for prompt in request.prompts
        ]
    ids = [_truncated(one, request, model, call) for one in ids]
    params = _params(request, model, max(map(len, ids)))
    if stop_ids:
        params = replace(params, stop_token_ids=(*params.stop_token_ids, *stop_ids))
    scaling, several = _scaling(request), len(ids) > 1
    constraint = own_constraint(request, call)
    requests = tuple(
        EngineRequest(
            prompt=tokens,
            params=params,
            is_continuation=len(prompt) > 0,
            constraint=constraint,
            scaling=scaling,
            **_common(request, f"{request.id}-{index}" if several else request.id, call),
        )
        for index, (prompt, tokens) in enumerate(zip(request.prompts, ids, strict=True))
    )
    reader = OutputReader(tokenizer, ids, params.n, lambda: None)
    return PreparedRequest(requests, reader, params.n, params)


def _embedding(request: EmbeddingRequest, model: LoadedModel, call: CallContext) -> PreparedRequest:
    read = encoder_inputs(request, model, call)
    requests = tuple(
        EngineRequest(
            prompt=one.ids,
            embed=EmbedParams(request.dimensions, one.pair_start, one.unseen),
            **_common(request, f"{request.id}-{index}", call),
        )
        for index, one in enumerate(read)
    )
    reader = OutputReader(model.tokenizer, [one.prompt for one in requests], 1, lambda: None)
    return PreparedRequest(requests, reader, 1, None)


def _scoring(request: ScoringRequest, model: LoadedModel, call: CallContext) -> PreparedRequest:
    requests = tuple(
        EngineRequest(
            prompt=prompt,
            continuations=request.continuations,
            **_common(request, f"{request.id}-{index}", call),
        )
        for index, prompt in enumerate(request.prompts)
    )
    reader = OutputReader(model.tokenizer, request.prompts, 1, lambda: None)
    return PreparedRequest(requests, reader, 1, None)


def _after(context: tuple[int, ...], ids: tuple[int, ...], tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens of a turn after those of `context`, with one beginning of the sequence."""
    if context and ids[:1] == (tokenizer.bos_id,):
        ids = ids[1:]
    return context + ids


def _common(request: InferenceRequest, request_id: str, call: CallContext) -> dict[str, Any]:
    """What engine requests of all kinds take over from the request and its call."""
    return {
        "request_id": request_id,
        "cache_salt": cache_salt(call.account.cache_salt, request.cache_key),
        "account": call.account.cache_salt,  # unlike its name, no other account has it
        "priority": request.priority,
        "deadline_s": request.deadline_s,
        "slo": request.slo,
    }


def cache_salt(account: str, key: str | None) -> str:
    """What separates prefix caches: the account, and the caller's own key within it."""
    return hashlib.sha256(f"{account}\0{key or ''}".encode()).hexdigest()[:16] if account or key else ""


def _context(request: GenerationRequest, model: LoadedModel) -> int:
    limit = request.context_limit
    if limit is None:
        return model.context_length
    if not 1 <= limit <= model.context_length:
        raise InvalidRequest(
            f"context_limit is {limit:,}, the model is loaded with a context of {model.context_length:,} "
            "tokens: send at most that, or load the model with a larger context",
            param="context_limit",
        )
    return limit


def _truncated(
    ids: tuple[int, ...], request: GenerationRequest, model: LoadedModel, call: CallContext
) -> tuple[int, ...]:
    """The tokens of a prompt that are read, with a warning for those that are not."""
    how = request.truncate
    if how is None:
        return ids
    most = _context(request, model) - (with_defaults(model.defaults, request.sampling).max_tokens or 1)
    limit = most if how.limit is None else how.limit
    if limit > most:
        raise InvalidRequest(
            f"{how.param} is {limit:,}, the context less max_tokens has {most:,} tokens: send at most that",
            param=how.param,
        )
    if len(ids) <= limit or limit < 1:
        return ids
    call.warn(
        how.param,
        f"the prompt has {len(ids):,} tokens and was cut to its {'last' if how.side == 'left' else 'first'}"
        f" {limit:,}: {len(ids) - limit:,} were left out",
    )
    if isinstance(request, CompletionRequest):
        return cut_ids(ids, limit, how.side, model)
    return ids[-limit:] if how.side == "left" else ids[:limit]


def _params(request: GenerationRequest, model: LoadedModel, prompt_tokens: int) -> SamplingParams:
    """Sampling parameters over the model's defaults, with `max_tokens` within the context where asked."""
    params = with_defaults(model.defaults, request.sampling)
    asked = params.max_tokens
    if request.context_limit is not None:
        room = _context(request, model) - prompt_tokens
        if room < 1:
            raise ContextLengthExceeded(
                f"prompt has {prompt_tokens:,} tokens, context_limit is {request.context_limit:,}: shorten "
                "it, or raise that",
                param="context_limit",
            )
        return replace(params, max_tokens=room if asked is None else min(asked, room))
    if (
        request.fit_context
        and asked is not None
        and prompt_tokens + asked > model.engine.limits.context_length
    ):
        return replace(params, max_tokens=None)
    return params


def _scaling(request: GenerationRequest, span: AnswerSpan | None = None) -> Scaling | None:
    settings = request.scaling
    if settings is None:
        return None
    return scaling_of(
        settings.vote, settings.best_by, settings.max_total_tokens, keep=settings.keep, place=span
    )


def _infill(model: LoadedModel, prompt: Prompt, suffix: str) -> Any:
    if not isinstance(prompt, str):
        raise InvalidRequest("suffix needs prompts that are texts, not token ids", param="suffix")
    check_characters(prompt, model.context_length, "prompt")
    check_characters(suffix, model.context_length, "suffix")
    return infill_prompt(model.tokenizer, prompt, suffix)


def prompt_texts(
    request: InferenceRequest, requests: Sequence[EngineRequest], model: LoadedModel
) -> list[str]:
    """The text of each prompt of a completion, as it was given or decoded; empty for other requests. Where it
    is to be shown, all that the model reads is decoded."""
    if isinstance(request, GenerationRequest) and request.show_prompt:
        return [model.tokenizer.decode(list(one.prompt), skip_special=False) for one in requests]
    if not isinstance(request, CompletionRequest):
        return [""] * len(requests)
    if request.truncate is not None:
        return [model.tokenizer.decode(list(one.prompt)) for one in requests]
    return [
        prompt if isinstance(prompt, str) else model.tokenizer.decode(list(prompt))
        for prompt in request.prompts
    ]
