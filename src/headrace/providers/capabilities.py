"""What a target can honor of a request: checked before anything is sent, refused by the parameter's name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    InferenceRequest,
    ReasoningSettings,
)
from headrace.providers.failure import TargetRefused
from headrace.providers.target import RemoteTarget
from headrace.sampling.params import PARAMETERS, SamplingParams, with_defaults

DEFAULTS = SamplingParams()
_ONLY_WHOLE = ("use_beam_search", "prompt_logprobs", "length_penalty", "early_stopping")
"""Parameters that no stream can have: every attempt is streamed."""


class Refusal(Struct, frozen=True):
    """A parameter that a target cannot honor, and why."""

    param: str
    cause: str


def adapted(
    request: InferenceRequest, target: RemoteTarget, drop: Collection[str], call: CallContext
) -> GenerationRequest:
    """The request as the target gets it. TargetRefused names what it cannot honor, unless that is in `drop`:
    then it is left out, with a warning."""
    found = only_generates(request, target.name)
    if not target.row.generates:
        raise TargetRefused(
            f"the target {target.name!r} ({target.provider.name}) generates no text: name it for reranking",
            param="model",
        )
    with_defaults(DEFAULTS, found.sampling)  # refuses values that no model takes
    for check in _CHECKS:
        found = check(_Adapting(target, drop, call), found)
    return found


def embeddable(
    request: EmbeddingRequest, target: RemoteTarget, drop: Collection[str], call: CallContext
) -> EmbeddingRequest:
    """The request for vectors as the target gets it; see `adapted`."""
    adapting = _Adapting(target, drop, call)
    if request.task == "rerank":
        return _rankable(request, adapting)
    if not target.row.embeddings:
        raise TargetRefused(
            f"the target {target.name!r} ({target.provider.name}) has no embeddings", param="model"
        )
    if request.task != "embed":
        raise TargetRefused(
            f"{target.name!r} is a remote model, which generates, embeds and ranks text: name a model of "
            f"this machine for {request.task}",
            param="model",
        )
    for one in request.inputs:
        if isinstance(one, str) or (isinstance(one, tuple) and target.row.token_prompts):
            continue
        raise TargetRefused(f"input: the target {target.name!r} takes texts only", param="input")
    for name in ("prompt_name", "max_tokens"):
        if getattr(request, name) is not None:
            adapting.refuse(name, "cannot be told")
            request = replace(request, **{name: None})
    if request.purpose is not None and target.row.embeddings != "google":
        call.warn("input_type", f"the target {target.name!r} makes one kind of vectors for all purposes")
    if request.truncate:
        call.warn("truncate", f"the target {target.name!r} decides whether texts that are too long are cut")
    return request


def _rankable(request: EmbeddingRequest, adapting: _Adapting) -> EmbeddingRequest:
    """Pairs of one query and its documents, to be scored."""
    target = adapting.target
    if not target.row.rerank:
        raise TargetRefused(
            f"the target {target.name!r} ({target.provider.name}) ranks no texts", param="model"
        )
    if request.max_tokens is not None:
        adapting.refuse("max_tokens_per_doc", "cuts documents as it likes")
        request = replace(request, max_tokens=None)
    if request.truncate and target.row.rerank != "tei":
        adapting.call.warn(
            "truncate", f"the target {target.name!r} decides whether texts that are too long are cut"
        )
    return request


def generates_or_embeds(request: InferenceRequest, name: str) -> GenerationRequest | EmbeddingRequest:
    """The request, InvalidRequest unless it asks for text or vectors."""
    return request if isinstance(request, EmbeddingRequest) else only_generates(request, name)


def only_generates(request: InferenceRequest, name: str) -> GenerationRequest:
    """The request, InvalidRequest unless it asks for text."""
    if isinstance(request, GenerationRequest):
        return request
    raise InvalidRequest(
        f"{name!r} is a remote model, which generates text: name a model of this machine for other tasks",
        param="model",
    )


class _Adapting(Struct):
    target: RemoteTarget
    drop: Collection[str]
    call: CallContext

    def refuse(self, param: str, cause: str) -> None:
        """Raise TargetRefused, or warn where the parameter is to be dropped."""
        if param in self.drop or param.split(".")[0] in self.drop:
            self.call.warn(param, f"{param} was left out: the target {self.target.name!r} {cause}")
            return
        raise TargetRefused(
            f"{param}: the target {self.target.name!r} ({self.target.provider.name}) {cause}: leave it out, "
            f'or put it into drop of [models."{self.target.name}"]',
            param=param,
        )


def _sampling(adapting: _Adapting, request: GenerationRequest) -> GenerationRequest:
    row, kept = adapting.target.row, dict[str, Any]()
    for name, value in request.sampling.items():
        if row.honors(name) and name not in _ONLY_WHOLE:
            kept[name] = value
        elif value is not None and value not in PARAMETERS[name].off:
            adapting.refuse(name, "cannot honor it")
    return replace(request, sampling=kept)


def _constraint(adapting: _Adapting, request: GenerationRequest) -> GenerationRequest:
    wanted = request.constraint
    if wanted is None:
        return request
    name = wanted.param or wanted.kind
    if wanted.after is not None:
        adapting.refuse(name, "cannot constrain a part of its output")
    elif adapting.target.row.takes(wanted.kind):
        return request
    else:
        adapting.refuse(name, f"cannot be held to a constraint of the kind {wanted.kind}")
    return replace(request, constraint=None)


def _general(adapting: _Adapting, request: GenerationRequest) -> GenerationRequest:
    if request.scaling is not None:
        scaling = request.scaling
        given = {
            "vote": scaling.vote,
            "best_by": scaling.best_by,
            "max_total_tokens": scaling.max_total_tokens,
        }
        for name, value in given.items():
            if value is not None:
                adapting.refuse(name, "generates choices that are not compared here")
        request = replace(request, scaling=None)
    if request.context_limit is not None:
        adapting.refuse("num_ctx", "has the context that its provider gives it")
        request = replace(request, context_limit=None)
    if request.truncate is not None:
        adapting.refuse(request.truncate.param, "does not cut prompts")
        request = replace(request, truncate=None)
    if request.finish_within_max_tokens:
        adapting.call.warn("finish_within_max_tokens", "has no effect: a remote model may be cut off")
        request = replace(request, finish_within_max_tokens=False)
    if request.show_prompt:
        adapting.call.warn("verbose", "has no effect: the prompt of a remote model is its provider's")
    if request.priority:
        adapting.call.ordered_elsewhere = True
        adapting.call.warn("priority", "has no effect: the provider of a remote model has its own order")
    if request.slo is not None:
        adapting.call.warn("slo", "has no effect: a remote model has no targets here")
    if request.keep_alive_s is not None:
        adapting.call.warn("keep_alive", "has no effect: a remote model is in no memory here")
    return request


def _chat(adapting: _Adapting, request: GenerationRequest) -> GenerationRequest:
    if not isinstance(request, ChatRequest):
        return request
    row = adapting.target.row
    if request.tool_format is not None:
        adapting.refuse("tool_format", "writes calls in its own format")
    if request.context:
        adapting.refuse("context", "reads no tokens: send the conversation as messages")
        request = replace(request, context=())
    if request.template_variables and not row.template_variables:
        adapting.refuse("chat_template_kwargs", "has no chat template that takes variables")
        request = replace(request, template_variables=None)
    if not row.images and any(message.images for message in request.messages):
        name = next(message.images[0].param for message in request.messages if message.images)
        adapting.refuse(name, "reads text only")
        request = replace(request, messages=tuple(replace(one, images=()) for one in request.messages))
    if request.continue_final_message and not row.continues:
        adapting.refuse("continue_final_message", "cannot continue a message: send one of the user last")
        request = replace(request, continue_final_message=False)
    elif not request.add_generation_prompt and not request.continue_final_message:
        adapting.refuse("add_generation_prompt", "always answers")
    if request.prediction is not None and not row.prediction:
        adapting.call.warn("prediction", "has no effect: the target takes none")
        request = replace(request, prediction=None)
    return _tools(adapting, request)


def _tools(adapting: _Adapting, request: ChatRequest) -> ChatRequest:
    use, row = request.tools, adapting.target.row
    if use is None:
        return request
    if not row.tools:
        adapting.refuse("tools", "calls no tools")
        return replace(request, tools=None)
    if not row.tool_choice and (use.mode != "auto" or use.offered != use.callable):
        adapting.refuse("tool_choice", "cannot be made to call a tool")
        use = replace(use, mode="auto", callable=use.offered)
    return replace(request, tools=use)


def _reasoning(adapting: _Adapting, request: GenerationRequest) -> GenerationRequest:
    if not isinstance(request, ChatRequest):
        return request
    settings, form = request.reasoning, adapting.target.row.reasoning
    able = {
        "": (),
        "effort": ("effort",),
        "openrouter": ("effort", "enabled", "max_tokens"),
        "deepseek": ("enabled",),
        "template": ("effort", "enabled"),
        "headrace": ("effort", "enabled", "max_tokens", "min_tokens", "continuation"),
        "anthropic": ("effort", "enabled", "max_tokens"),
        "google": ("effort", "enabled", "max_tokens"),
    }[form]
    left: dict[str, Any] = {}
    for name in ("effort", "enabled", "max_tokens", "min_tokens", "continuation"):
        if getattr(settings, name) in (None, 0) or name in able:
            continue
        if name == "enabled" and "effort" in able and (settings.effort or not settings.enabled):
            continue  # the effort says it, "none" where there is to be no reasoning
        if settings.required:
            adapting.refuse(settings.name(name), "cannot be told so about its reasoning")
        else:
            param = settings.name(name)
            adapting.call.warn(param, f"{param} has no effect: the target cannot be told so")
        left[name] = 0 if name == "min_tokens" else None
    return replace(request, reasoning=replace(settings, **left)) if left else request


def _completion(adapting: _Adapting, request: GenerationRequest) -> GenerationRequest:
    if not isinstance(request, CompletionRequest):
        return request
    row, name = adapting.target.row, adapting.target.name
    if not row.completions or adapting.target.provider.dialect != "openai_chat":
        raise TargetRefused(
            f"prompt: the target {name!r} ({adapting.target.provider.name}) answers conversations only: send "
            "messages to /v1/chat/completions",
            param="prompt",
        )
    if not row.token_prompts and not all(isinstance(prompt, str) for prompt in request.prompts):
        raise TargetRefused(f"prompt: the target {name!r} reads texts, not token ids", param="prompt")
    if request.suffix and not row.suffix:
        adapting.refuse("suffix", "does not fill in")
        request = replace(request, suffix=None)
    return request


_CHECKS = (_sampling, _constraint, _general, _chat, _reasoning, _completion)


def says_reasoning(settings: ReasoningSettings) -> bool:
    """Whether a request says anything about reasoning."""
    return settings.effort is not None or settings.enabled is not None or settings.max_tokens is not None
