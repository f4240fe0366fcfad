"""What the output of a request must match: its own constraint, and the schemas of its tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from headrace.chat.prompt import ChatPrompt
from headrace.chat.tools import Tool, ToolUse
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint
from headrace.grammar.json_schema import compile_schema, schema_warnings
from headrace.inference.call_context import CallContext
from headrace.inference.requests import ChatRequest, GenerationRequest
from headrace.sampling.params import SamplingParams
from headrace.tokenization.token_bytes import Kind

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

_ANY_ARGUMENTS = {"type": "object"}


class OutputConstraint(Struct, frozen=True):
    """`otherwise` takes the place of `constraint` where that cannot be compiled: calls of tools with any
    arguments."""

    constraint: Constraint | None = None
    otherwise: Constraint | None = None


def own_constraint(request: GenerationRequest, call: CallContext) -> Constraint | None:
    """The constraint that a request has itself; warnings of its schema go to `call`. Raises GrammarError, and
    InvalidRequest where there is none that `finish_within_max_tokens` could finish."""
    return _finishing(request, OutputConstraint(_written(request, call))).constraint


def _finishing(request: GenerationRequest, matched: OutputConstraint) -> OutputConstraint:
    if not request.finish_within_max_tokens:
        return matched
    if matched.constraint is None:
        raise InvalidRequest(
            "finish_within_max_tokens needs an output with a grammar: give response_format or another such "
            "field too, or leave it out",
            param="finish_within_max_tokens",
        )
    both = (matched.constraint, matched.otherwise)
    return OutputConstraint(*(None if one is None else replace(one, finishes=True) for one in both))


def _written(request: GenerationRequest, call: CallContext) -> Constraint | None:
    wanted = request.constraint
    if wanted is None or wanted.kind not in ("json_schema", "structural_tag"):
        return wanted
    closes = request.disable_additional_properties
    wanted = replace(wanted, disable_additional_properties=closes)
    if wanted.kind == "json_schema":
        name = wanted.name
        try:
            schema = json.loads(wanted.text)
        except (ValueError, RecursionError) as error:
            raise wanted.error(f"is not JSON: {str(error)[:200]}") from None
        compiled = compile_schema(schema, param=name, disable_additional_properties=closes)
        for warning in schema_warnings([compiled]):
            call.warn(name, warning)
    return wanted


def chat_constraint(
    request: ChatRequest, prompt: ChatPrompt, params: SamplingParams, model: LoadedModel, call: CallContext
) -> OutputConstraint:
    """What the answer in a conversation must match; warnings go to `call`.

    Raises InvalidRequest if a schema cannot be enforced, if both tools and the request need a grammar, or
    where there is none that `finish_within_max_tokens` could finish.
    """
    return _finishing(request, _chat_constraint(request, prompt, params, model, call))


def _chat_constraint(
    request: ChatRequest, prompt: ChatPrompt, params: SamplingParams, model: LoadedModel, call: CallContext
) -> OutputConstraint:
    wanted, use = _written(request, call), prompt.use
    asked = use is not None and (use.mode == "required" or any(tool.strict for tool in use.callable))
    if use is not None and not asked:
        cause = _free_because(prompt, wanted, params, model)
        if cause:
            call.warn("tools", f"calls are not held to their schemas: {cause}")
            use = None
    if use is None:
        return OutputConstraint(None if wanted is None else prompt.after_reasoning(wanted))
    if wanted is not None:
        raise InvalidRequest(
            f"{wanted.name} excludes strict tools and a tool_choice that requires a "
            "call: an answer follows one grammar, leave one of them out",
            param=wanted.param,
        )
    grammar, otherwise = (
        prompt.tool_grammar(
            model.tokenizer, tools, disable_additional_properties=request.disable_additional_properties
        )
        for tools in (use, _with_any_arguments(use))
    )
    for warning in grammar.warnings:
        call.warn("tools", warning)
    return OutputConstraint(
        Constraint("lark", grammar.text, param="tools"),
        None
        if any(tool.strict for tool in use.callable)
        else Constraint("lark", otherwise.text, param="tools"),
    )


def _free_because(
    prompt: ChatPrompt, wanted: Constraint | None, params: SamplingParams, model: LoadedModel
) -> str:
    """Why calls that nothing demands are not constrained; empty where they are."""
    if wanted is not None:
        return f"the answer follows {wanted.name}"
    if prompt.is_continuation:
        return "the answer continues a text"
    if params.use_beam_search:
        return "beam search follows no grammar"
    if model.tokenizer.pieces.kind is Kind.WHOLE:
        return "this model's tokenizer has no bytes for single tokens"
    return ""


def _with_any_arguments(use: ToolUse) -> ToolUse:
    tools = tuple(Tool(tool.name, tool.description, _ANY_ARGUMENTS) for tool in use.callable)
    return replace(use, callable=tools)
