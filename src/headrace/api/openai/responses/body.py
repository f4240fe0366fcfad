"""The bodies of POST /v1/responses and …/input_tokens: what they ask for, what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from headrace.api.openai.parameters import GenerationBody, RequestBody
from headrace.api.openai.response_format import constraint_of
from headrace.api.openai.responses.items import Item
from headrace.api.openai.responses.schema import ResponseObject, ResponseReasoning, TextOptions
from headrace.api.openai.responses.turns import messages_of
from headrace.api.service import now_s
from headrace.chat.tools import ToolUse, tool_use_from_openai
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint
from headrace.inference.events import ParameterWarning, Prepared
from headrace.inference.requests import ChatRequest, ReasoningSettings
from headrace.sampling.params import MAX_TOP_LOGPROBS, SamplingParams

REASONING_NAMES = {
    "effort": "reasoning.effort",
    "max_tokens": "thinking_token_budget",
    "template_variables": "chat_template_kwargs",
}
LOGPROBS = "message.output_text.logprobs"
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
INCLUDABLE: tuple[str, ...] = get_args(Includable)
_INPUT = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}],
    "description": "A text, or messages, calls, their outputs, reasoning and references to kept items.",
}
_TOOLS = {"type": ["array", "null"], "items": {"type": "object"}}
_TEXT = Annotated[str, Field(max_length=1024)]

# Parameters of the other endpoints, and what stands in their place here.
ELSEWHERE: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": f'include with "{LOGPROBS}"',
    "functions": "tools",
    "function_call": "tool_choice",
    "conversation": "previous_response_id",
    "n": "one request for each answer",
    "best_of": "one request for each answer",
}


class EffortOptions(BaseModel):
    """`reasoning` of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    effort: Annotated[str, Field(max_length=20)] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class TextBody(BaseModel):
    """`text` of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    format: Annotated[dict[str, Any] | None, WithJsonSchema({"type": ["object", "null"]})] = None
    verbosity: Literal["low", "medium", "high"] | None = None


class PromptBody(RequestBody):
    """What is put into the model."""

    no_effect: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "prompt_cache_retention": (),
        "prompt_cache_options": (),
    }
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "prompt": (),
        "context_management": ([],),
        "moderation": (),
        "access_programs": (),
        "image": (),
        "personality": (),
    }
    model: str | None = None
    input: Annotated[Any, WithJsonSchema(_INPUT)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=256)] | None = None
    tools: Annotated[Any, WithJsonSchema(_TOOLS)] = None
    tool_choice: Annotated[Any, WithJsonSchema({"type": ["string", "object", "null"]})] = None
    parallel_tool_calls: bool | None = None
    reasoning: Annotated[EffortOptions, WithJsonSchema(EffortOptions.model_json_schema())] | None = None
    text: Annotated[TextBody, WithJsonSchema(TextBody.model_json_schema())] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def warnings(self) -> list[ParameterWarning]:
        """Warnings for fields without effect; raises InvalidRequest for one that cannot be honored."""
        for name, place in ELSEWHERE.items():
            if getattr(self, name, None) is not None:
                raise InvalidRequest(
                    f"{name} is no parameter of responses: send {place}", param=name, code="unknown_parameter"
                )
        if self.truncation == "auto":
            raise InvalidRequest(
                'truncation "auto" is not supported, no input is ever cut here: leave it out and send less',
                param="truncation",
                code="unsupported_parameter",
            )
        found = super().warnings()
        for name in ("summary", "generate_summary"):
            if self.reasoning is not None and getattr(self.reasoning, name) is not None:
                found.append(
                    _idle(f"reasoning.{name}", "reasoning is not summarized, its text is in the output")
                )
        if self.text is not None and self.text.verbosity is not None:
            found.append(_idle("text.verbosity"))
        given: object = self.input
        items = cast("list[object]", given) if isinstance(given, list) else []
        if any(cast("dict[str, object]", item).get("phase") for item in items if isinstance(item, dict)):
            found.append(_idle("input.phase"))
        return found

    def chat(self, reply_id: str, items: Sequence[Item], **more: Any) -> ChatRequest:
        """The request that stands for all the `items` of the conversation; `more` are its other fields."""
        given: dict[str, Any] = {
            "reasoning": ReasoningSettings(effort=self._effort, required=True, names=REASONING_NAMES),
        }
        return ChatRequest(
            id=reply_id,
            model=self.model,
            messages=tuple(messages_of(items, self.instructions)),
            tools=self.tool_use(),
            template_variables=self.chat_template_kwargs,
            **given | more,
        )

    def tool_use(self) -> ToolUse | None:
        """The tools that may be called. They and `tool_choice` name functions without a level between."""
        tools, choice = self.tools, self.tool_choice
        if isinstance(tools, list):
            tools = [_nested(tool) for tool in cast("list[object]", tools)]
        return tool_use_from_openai(tools, _nested(choice), self.parallel_tool_calls)

    @property
    def _effort(self) -> str | None:
        return self.reasoning.effort if self.reasoning is not None else None


class CountBody(PromptBody):
    """The body of a count of tokens."""


class ResponseBody(PromptBody, GenerationBody):
    """The body of a response. Sampling parameters are those of chat completions."""

    background: bool | None = None
    include: list[Includable] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    safety_identifier: _TEXT | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    store: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    thinking_token_budget: Annotated[int, Field(ge=0)] | None = None
    user: _TEXT | None = None

    @property
    def kept(self) -> bool:
        """Whether the response is to be kept."""
        return self.store is not False

    @property
    def wants_logprobs(self) -> bool:
        """Whether the output shows log probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def warnings(self) -> list[ParameterWarning]:
        """Warnings for fields without effect; raises InvalidRequest for one that cannot be honored."""
        if self.background and not self.kept:
            raise InvalidRequest(
                "background needs store: true, it is read back from the store", param="background"
            )
        if self.include_usage:
            raise InvalidRequest(
                "stream_options.include_usage is for other endpoints, here every response has its usage",
                param="stream_options",
            )
        found = super().warnings()
        found += [_idle(name) for name in ("safety_identifier", "user") if getattr(self, name) is not None]
        if self.max_tool_calls is not None:
            found.append(_idle("max_tool_calls", "it bounds built-in tools, of which there are none here"))
        if self.service_tier not in (None, "auto", "default"):
            found.append(_idle("service_tier", "there is one tier"))
        found += [_idle(f"include.{name}", "there is no such thing here") for name in self._idle_includes()]
        return found

    def _idle_includes(self) -> list[str]:
        return [name for name in self.include or () if name != LOGPROBS]

    def constraint(self, *, after: str | None = None) -> Constraint | None:
        """What the output must match: `text.format`, or one of vLLM's parameters."""
        wanted = super().constraint(after=after)
        if self.text is None or self.text.format is None:
            return wanted
        written = constraint_of({"text.format": self.text.format}, after)
        if wanted is not None and written is not None:
            raise InvalidRequest(
                f"text.format and {wanted.param} both say what the output must match: send one",
                param="text.format",
            )
        return wanted or written

    def request(self, reply_id: str, items: Sequence[Item]) -> ChatRequest:
        """The request that this body stands for, after the `items` of the conversation."""
        more: dict[str, Any] = {"n": 1}
        if self.max_output_tokens is not None:
            more["max_tokens"] = self.max_output_tokens
        if self.wants_logprobs:
            more["logprobs"] = self.top_logprobs or 0
        reasoning = ReasoningSettings(
            effort=self._effort,
            max_tokens=self.thinking_token_budget,
            required=True,
            names=REASONING_NAMES,
        )
        return self.chat(
            reply_id,
            items,
            reasoning=reasoning,
            cache_key=self.prompt_cache_key,
            priority=self.priority,
            deadline_s=self.deadline_s,
            sampling=self.sampling(**more),
            constraint=self.constraint(),
            disable_additional_properties=self.disable_additional_properties is not False,
        )

    def response(self, response_id: str, prepared: Prepared) -> ResponseObject:
        """The response before anything of it is there."""
        form = self.text.format if self.text is not None else None
        params = prepared.params or SamplingParams()
        return ResponseObject(
            id=response_id,
            created_at=now_s(),
            model=prepared.model,
            background=bool(self.background),
            instructions=self.instructions,
            max_output_tokens=self.max_output_tokens,
            max_tool_calls=self.max_tool_calls,
            metadata=self.metadata or {},
            parallel_tool_calls=self.parallel_tool_calls is not False,
            previous_response_id=self.previous_response_id,
            prompt_cache_key=self.prompt_cache_key,
            reasoning=ResponseReasoning(self._effort),
            safety_identifier=self.safety_identifier,
            temperature=params.temperature,
            text=TextOptions(form or {"type": "text"}),
            tool_choice=self.tool_choice or "auto",
            tools=[_shown(tool) for tool in self.tools or ()],
            top_logprobs=self.top_logprobs or 0,
            top_p=params.top_p,
            user=self.user,
            store=self.kept,
            status="queued" if self.background else "in_progress",
        )


def _idle(name: str, why: str | None = None) -> ParameterWarning:
    reason = "" if why is None else f": {why}"
    return ParameterWarning(name, f"{name} was accepted and has no effect{reason}")


def _nested(tool: object) -> object:
    """A tool, or the choice of one, in the shape of chat completions."""
    if not isinstance(tool, dict):
        return tool
    fields = cast("dict[str, object]", tool)
    if fields.get("type") != "function":
        return fields
    function = {key: value for key, value in fields.items() if key != "type" and value is not None}
    return {"type": "function", "function": function}


def _shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as the response shows it, with the fields that clients expect."""
    return {"description": None, "parameters": None} | dict(tool) | {"strict": bool(tool.get("strict"))}
