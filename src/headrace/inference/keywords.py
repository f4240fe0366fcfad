"""From the keyword arguments of `LLM` and `AsyncLLM` to inference requests."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from headrace.chat.messages import messages_from_openai
from headrace.chat.tools import tool_use_from_openai
from headrace.config.names import suggestion
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint, choice_constraint, schema_constraint
from headrace.grammar.sql import sql_constraint
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    Prompt,
    ReasoningSettings,
    ScalingSettings,
)
from headrace.inference.urgency import read_targets, urgency
from headrace.sampling.params import SamplingParams, with_defaults
from headrace.storage.keys import KeyLimits

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

PromptLike = str | Sequence[int]
Messages = Sequence[Mapping[str, object]]

CHAT = ("tools", "tool_choice", "parallel_tool_calls", "tool_format", "template_variables")
REASONING = ("reasoning_effort", "thinking_token_budget", "min_thinking_tokens", "thinking_continuation")
SCALING = ("vote", "best_by", "max_total_tokens")
REQUEST = ("deadline_s", "disable_additional_properties", "finish_within_max_tokens")
URGENCY = ("priority", "service_tier", "slo")
GUARD, EXPLAIN, ADAPTER = "guard", "explain", "adapter"
_LISTS = (
    *("stop", "stop_token_ids", "allowed_token_ids"),
    *("bad_words", "banned_strings", "dry_sequence_breakers"),
)
_REASONING_NAMES = {
    "effort": "reasoning_effort",
    "max_tokens": "thinking_token_budget",
    "min_tokens": "min_thinking_tokens",
    "continuation": "thinking_continuation",
}
CONSTRAINTS: Mapping[str, Callable[[Any], Constraint]] = {
    "json_schema": lambda schema: schema_constraint(schema, param="json_schema"),
    "json_object": lambda _: Constraint("json_object", param="json_object"),
    "regex": lambda pattern: Constraint("regex", pattern, param="regex"),
    "choice": lambda texts: choice_constraint(texts, param="choice"),
    "grammar": lambda text: Constraint("ebnf" if "::=" in str(text) else "lark", text, param="grammar"),
    "sql": lambda tables: sql_constraint(tables, param="sql"),
    "constraint": lambda constraint: constraint,
}
_PARAMS = frozenset(SamplingParams.__struct_fields__)


def completion_request(prompt: PromptLike, given: Mapping[str, Any]) -> CompletionRequest:
    """A text or token ids to continue. Raises InvalidRequest for an unknown keyword."""
    known = _PARAMS | CONSTRAINTS.keys() | {*SCALING, *REQUEST, *URGENCY, GUARD, EXPLAIN, ADAPTER}
    check_known("generate", given, known)
    return CompletionRequest(prompts=(as_prompt(prompt),), **_generation(given))


def chat_request(messages: Messages, given: Mapping[str, Any]) -> ChatRequest:
    """Messages to answer. Raises InvalidRequest for an unknown keyword."""
    known = (
        _PARAMS
        | CONSTRAINTS.keys()
        | {*SCALING, *REQUEST, *URGENCY, GUARD, EXPLAIN, ADAPTER, *CHAT, *REASONING}
    )
    check_known("chat", given, known)
    effort, budget, least, continuation = (given.get(name) for name in REASONING)
    return ChatRequest(
        messages=tuple(messages_from_openai(list(messages))),
        tools=tool_use_from_openai(
            given.get("tools"), given.get("tool_choice"), given.get("parallel_tool_calls")
        ),
        tool_format=given.get("tool_format"),
        template_variables=given.get("template_variables"),
        reasoning=ReasoningSettings(
            effort=effort,
            max_tokens=budget,
            min_tokens=least or 0,
            continuation=continuation,
            required=True,
            names=_REASONING_NAMES,
        ),
        **_generation(given),
    )


def embedding_request(
    inputs: Sequence[PromptLike],
    dimensions: int | None,
    prompt_name: str | None = None,
    *,
    truncate: bool = False,
) -> EmbeddingRequest:
    """Texts or token ids whose vectors are wanted."""
    texts = tuple(as_prompt(one) for one in inputs)
    return EmbeddingRequest(
        id=new_id(), inputs=texts, dimensions=dimensions, prompt_name=prompt_name, truncate=truncate
    )


def at_a_time(requests: Sequence[GenerationRequest], model: LoadedModel) -> int:
    """How many of these requests, alike but for their prompts, may be in progress."""
    choices = with_defaults(model.defaults, requests[0].sampling).n if requests else 1
    return max(1, model.engine.limits.max_choices // choices)


def new_call(given: Mapping[str, Any] = MappingProxyType({})) -> CallContext:
    """The call of a request from this process with these keywords: it has no key and no limits."""
    explain = given.get(EXPLAIN) or False
    if not isinstance(explain, bool):
        raise InvalidRequest(f"explain is {explain!r}: give True or False", param=EXPLAIN)
    return CallContext(request_id=new_id(), account=Account("", KeyLimits()), explain=explain)


def new_id() -> str:
    """A fresh id."""
    return uuid.uuid4().hex


def as_prompt(prompt: object) -> Prompt:
    """A text as it is; token ids of any sequence of integers, NumPy's too."""
    if isinstance(prompt, str):
        return prompt
    try:
        if not isinstance(prompt, bytes | bytearray):
            return tuple(operator.index(token) for token in cast("Sequence[SupportsIndex]", prompt))
    except TypeError:
        pass
    raise InvalidRequest("the prompt is neither a text nor a sequence of token ids", param="prompt")


def check_known(where: str, given: Mapping[str, object], known: frozenset[str] | set[str]) -> None:
    """InvalidRequest for a keyword that is not known."""
    unknown = sorted(set(given) - known)
    if unknown:
        known_names = sorted(known)
        remedy = suggestion(unknown[0], known_names) or f"; known: {', '.join(known_names)}"
        raise InvalidRequest(f"{where}() got unknown '{unknown[0]}'{remedy}", param=unknown[0])


def _generation(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that all generating requests have."""
    sampling = {name: value for name, value in given.items() if name in _PARAMS}
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = (sampling["stop"],)
    for name in _LISTS:
        if isinstance(sampling.get(name), list | set | frozenset):
            sampling[name] = tuple(sampling[name])
    scaling = {name: given[name] for name in SCALING if given.get(name) is not None}
    return {
        "id": new_id(),
        "model": None if given.get(ADAPTER) is None else f":{given[ADAPTER]}",
        "sampling": sampling,
        "constraint": _constraint(given),
        "scaling": ScalingSettings(**scaling) if scaling else None,
        "guards": _guard_names(given.get(GUARD)),
        "priority": urgency(given.get("priority"), given.get("service_tier")),
        "slo": read_targets(given.get("slo")),
        **{name: given[name] for name in REQUEST if given.get(name) is not None},
    }


def _guard_names(given: object) -> tuple[str, ...]:
    """The names in one text or several."""
    names = (given,) if isinstance(given, str) else given or ()
    found = cast("Sequence[object]", names) if isinstance(names, list | tuple) else (None,)
    if not all(isinstance(one, str) for one in found):
        raise InvalidRequest("guard is neither a name nor a list of names", param=GUARD)
    return tuple(cast("Sequence[str]", found))


def _constraint(given: Mapping[str, Any]) -> Constraint | None:
    """What the output must match."""
    wanted = [
        name
        for name, value in given.items()
        if name in CONSTRAINTS and value is not None and value is not False
    ]
    if len(wanted) > 1:
        raise InvalidRequest(
            f"{' and '.join(wanted)} both say what the output must match: give one", param=wanted[1]
        )
    return CONSTRAINTS[wanted[0]](given[wanted[0]]) if wanted else None
