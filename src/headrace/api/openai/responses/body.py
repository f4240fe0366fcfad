"""The bodies of POST /v1/responses and …/input_tokens: what they ask for, what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

from msgspec import Meta, Struct

from headrace.api.http.body import Json, Values, loose, targets_of, wishes_of, without_effect
from headrace.api.openai.batches import Metadata
from headrace.api.openai.generation_body import TOOL_NAME, GenerationBody
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
_INPUT = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}],
    "description": "A text, or messages, calls, their outputs, reasoning and references to kept items.",
}
_TOOLS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "type": {"enum": ["function", "mcp", "sql", "search", "file_search"]},
            "name": TOOL_NAME,
        },
        "required": ["type"],
    },
}
_VERIFY = {
    "type": "array",
    "items": {"type": "object", "required": ["kind"]},
    "maxItems": 16,
    "description": "Checks of the answer: kind schema, regex, sql or judge.",
}
_Text = Annotated[str, Meta(max_length=1024)]

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


SERVER_TOOLS = ("mcp", "sql", "search", "file_search")
"""Types of tools that this server calls."""
NO_TIERS = ("scale", "fast", "ultrafast")


class EffortOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`reasoning` of a request."""

    effort: Annotated[str, Meta(max_length=20)] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class TextBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`text` of a request."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class RunBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """What a request that calls tools of this server may use, in all its steps together."""

    steps: Annotated[int, Meta(ge=1, le=100)] = 12
    tokens: Annotated[int, Meta(ge=1, le=2**40)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    usd: Annotated[float, Meta(gt=0, le=1e6)] | None = None


class ResponseBody(GenerationBody, kw_only=True):
    """The body of a response. Sampling parameters are those of chat completions."""

    no_effect: ClassVar[Mapping[str, Values]] = {"prompt_cache_retention": (), "prompt_cache_options": ()}
    unsupported: ClassVar[Mapping[str, Values]] = {
        "prompt": (),
        "context_management": ([],),
        "moderation": (),
        "access_programs": (),
        "image": (),
        "personality": (),
        "truncation": ("disabled",),  # no input is ever cut here
    }
    elsewhere: ClassVar[Mapping[str, str]] = ELSEWHERE

    input: Annotated[Any, loose(_INPUT)] = None
    instructions: str | None = None
    previous_response_id: Annotated[str, Meta(max_length=256)] | None = None
    tools: Annotated[Any, loose(_TOOLS)] = None
    tool_choice: Annotated[Any, loose({"type": ["string", "object"]})] = None
    parallel_tool_calls: bool | None = None
    reasoning: EffortOptions | None = None
    text: TextBody | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    background: bool | None = None
    include: list[Includable] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=0, le=1000)] | None = None
    budget: RunBudget | None = None
    verify: Annotated[Any, loose(_VERIFY)] = None
    max_repairs: Annotated[int, Meta(ge=0, le=10)] | None = None
    metadata: Metadata | None = None
    safety_identifier: _Text | None = None
    service_tier: (  # pyright: ignore[reportIncompatibleVariableOverride]
        Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None
    ) = None
    store: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0)] | None = None
    user: _Text | None = None

    @property
    def runs_tools(self) -> bool:
        """Whether this server calls tools for it, or checks its answer."""
        given: object = self.tools
        tools = cast("list[object]", given) if isinstance(given, list) else []
        return self.verify is not None or any(_is_of_server(tool) for tool in tools)

    @property
    def kept(self) -> bool:
        """Whether the response is to be kept."""
        return self.store is not False

    @property
    def wants_logprobs(self) -> bool:
        """Whether the output shows log probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def warnings(self) -> list[ParameterWarning]:
        """Warnings for values without effect; raises InvalidRequest for what contradicts itself."""
        if self.background and not self.kept:
            raise InvalidRequest(
                "background needs store: true, it is read back from the store", param="background"
            )
        found = super().warnings()
        if self.streaming.include_usage:
            raise InvalidRequest(
                "stream_options.include_usage is for other endpoints, here every response has its usage",
                param="stream_options",
            )
        return found + [without_effect(name, why) for name, why in self._idle().items()]

    def _idle(self) -> dict[str, str]:
        """What was given and has no effect, and why."""
        reasoning, text, items = self.reasoning or EffortOptions(), self.text or TextBody(), self.input
        not_summarized = "reasoning is not summarized, its text is in the output"
        no_tools = "it bounds tools of this server, of which the request has none"
        entries = cast("list[object]", items) if isinstance(items, list) else []
        phase = any(cast("Json", item).get("phase") for item in entries if isinstance(item, dict))
        found = {
            "reasoning.summary": not_summarized if reasoning.summary else None,
            "reasoning.generate_summary": not_summarized if reasoning.generate_summary else None,
            "text.verbosity": "" if text.verbosity else None,
            "input.phase": "" if phase else None,
            "safety_identifier": None if self.safety_identifier is None else "",
            "user": None if self.user is None else "",
            "max_tool_calls": None if self.max_tool_calls is None or self.runs_tools else no_tools,
            "budget": None if self.budget is None or self.runs_tools else no_tools,
            "service_tier": "there is no such tier" if self.service_tier in NO_TIERS else None,
        }
        found |= {
            f"include.{name}": "there is no such thing here"
            for name in self.include or ()
            if name not in (LOGPROBS, "file_search_call.results")  # which are always there
        }
        return {name: why for name, why in found.items() if why is not None}

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
            if tools and choice not in (None, "none", "auto") and all(map(_is_of_server, tools)):  # pyright: ignore[reportUnknownArgumentType]
                raise InvalidRequest(
                    "tool_choice chooses among functions of the request: the model decides which tools of "
                    "this server are called, so leave it out",
                    param="tool_choice",
                )
            given = cast("list[object]", tools)
            for index, tool in enumerate(given):
                _check_type(tool, f"tools[{index}]")
            tools = [_nested(tool) for tool in given if not _is_of_server(tool)]
        return tool_use_from_openai(tools, _nested(choice), self.parallel_tool_calls)

    @property
    def _effort(self) -> str | None:
        return self.reasoning.effort if self.reasoning is not None else None

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
            priority=self.urgency,
            deadline_s=self.deadline_s,
            slo=targets_of(self.slo),
            route=wishes_of(self.route),
            guards=self.guards,
            cache=self.cache_use,
            sampling=self.sampling(**more),
            constraint=self.constraint(),
            disable_additional_properties=self.disable_additional_properties is not False,
            finish_within_max_tokens=bool(self.finish_within_max_tokens),
        )

    def response(self, response_id: str, prepared: Prepared, tier: str) -> ResponseObject:
        """The response before anything of it is there; `tier` is the service tier that it got."""
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
            service_tier=tier,
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


PROMPT_FIELDS = frozenset(
    [
        *("model", "input", "instructions", "previous_response_id", "tools", "tool_choice"),
        *("parallel_tool_calls", "reasoning", "text", "chat_template_kwargs"),
    ]
)


class CountBody(ResponseBody):
    """The body of a count of tokens: what of a response's body makes the prompt."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys({*ResponseBody.__struct_fields__} - PROMPT_FIELDS, ""),
        **ELSEWHERE,
    }


def _is_of_server(tool: object) -> bool:
    return isinstance(tool, dict) and cast("Json", tool).get("type") in SERVER_TOOLS


def _check_type(tool: object, where: str) -> None:
    kind = cast("Json", tool).get("type") if isinstance(tool, dict) else None
    if kind is not None and kind not in ("function", *SERVER_TOOLS):
        raise InvalidRequest(
            f"{where}.type is {kind!r:.60}: there are function, {', '.join(SERVER_TOOLS)}", param="tools"
        )


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
    if _is_of_server(tool):
        return dict(tool)
    return {"description": None, "parameters": None} | dict(tool) | {"strict": bool(tool.get("strict"))}
