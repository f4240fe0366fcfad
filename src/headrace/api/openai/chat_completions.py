"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import Values, checked_body, loose, read_checked, targets_of, wishes_of
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.event_stream import chunks
from headrace.api.http.generation import answer, respond
from headrace.api.http.sampling_fields import bounds
from headrace.api.openai.best_of import ScalingBody
from headrace.api.openai.generation_body import NO_EFFECT, TOOLS
from headrace.api.openai.logprobs import chat_logprobs, prompt_logprobs
from headrace.api.openai.output_formatter import chat_delta, chat_message
from headrace.api.openai.prediction import Prediction
from headrace.api.openai.responder import OpenAIReply, ReplyOptions
from headrace.api.openai.schema import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatReply,
    PromptLogprobList,
    ScalingNote,
)
from headrace.api.service import Service, get_service
from headrace.chat.messages import ROLES, messages_from_openai
from headrace.chat.tools import tool_use_from_openai
from headrace.errors import InvalidRequest
from headrace.inference.events import OutputDelta, OutputFinished, PromptScored, TokenText
from headrace.inference.requests import ChatRequest, ReasoningSettings
from headrace.inference.result import ChoiceResult
from headrace.sampling.params import MAX_TOP_LOGPROBS

T = TypeVar("T")

REASONING_NAMES = {
    "effort": "reasoning_effort",
    "min_tokens": "min_thinking_tokens",
    "continuation": "thinking_continuation",
    "template_variables": "chat_template_kwargs",
}

MIN_THINKING = (
    "Reasoning has at least so many tokens: where the model would end it before, `thinking_continuation`, by "
    'default "Wait", stands in place of the end. It counts, too. Cannot be combined with logprobs.'
)

VERBOSE = (
    "The reply, or the first chunk, has the prompt as the model reads it in `__verbose`, as with llama.cpp."
)

MESSAGE = {
    "properties": {"role": {"enum": list(ROLES)}},
    "required": ["role"],
    "anyOf": [
        {"properties": {"role": {"const": "assistant"}}},
        {"properties": {"content": {"type": ["string", "array"]}}, "required": ["content"]},
    ],
}
NO_FUNCTIONS = {"type": "array", "maxItems": 0, "deprecated": True}

Messages = Annotated[list[Annotated[dict[str, Any], Meta(extra_json_schema=MESSAGE)]], Meta(min_length=1)]
Effort = Annotated[str, Meta(max_length=20)]
Budget = Annotated[int, Meta(ge=0)]


class ReasoningOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`reasoning` as OpenRouter has it: another place for effort and budget."""

    effort: Effort | None = None
    max_tokens: Budget | None = None


class ChatBody(ScalingBody, kw_only=True):
    """The body of a chat completion."""

    no_effect: ClassVar[Mapping[str, Values]] = {
        name: values for name, values in NO_EFFECT.items() if name != "verbose"
    }
    messages: Messages
    max_completion_tokens: Annotated[int, bounds("max_tokens")] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, bounds("logprobs")] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: Annotated[Any, loose(TOOLS)] = None
    tool_choice: Annotated[Any, loose({"type": ["string", "object"]})] = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Any, loose(NO_FUNCTIONS)] = None
    function_call: Annotated[Any, loose({"enum": ["none", "auto"], "deprecated": True})] = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Budget | None = None
    thinking_budget: Budget | None = None
    min_thinking_tokens: Annotated[int, Meta(ge=0, description=MIN_THINKING)] | None = None
    thinking_continuation: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    reasoning: ReasoningOptions | None = None
    prediction: Prediction | None = None
    verbose: Annotated[bool, Meta(description=VERBOSE)] | None = None

    @property
    def effort(self) -> str | None:
        """How much the model should reason."""
        return self._one({"reasoning_effort": self.reasoning_effort, "reasoning": self._reasoning.effort})

    @property
    def _reasoning(self) -> ReasoningOptions:
        return self.reasoning or ReasoningOptions()

    def _reasoning_settings(self) -> ReasoningSettings:
        names = {
            "thinking_token_budget": self.thinking_token_budget,
            "thinking_budget": self.thinking_budget,
            "reasoning": self._reasoning.max_tokens,
        }
        budget, least = self._one(names), self.min_thinking_tokens or 0
        param = next((name for name, value in names.items() if value is not None), "min_thinking_tokens")
        limit = self._limit
        for name, value in ((param, budget), ("min_thinking_tokens", least)):
            if limit is not None and value is not None and value > limit:
                raise InvalidRequest(
                    f"{name} ({value:,}) is larger than max_tokens ({limit:,}), which bounds reasoning and "
                    "answer together: change one of them",
                    param=name,
                )
        return ReasoningSettings(
            effort=self.effort,
            max_tokens=budget,
            min_tokens=least,
            continuation=self.thinking_continuation,
            required=True,
            names={**REASONING_NAMES, "max_tokens": param},
        )

    @property
    def _limit(self) -> int | None:
        return self._one({"max_tokens": self.max_tokens, "max_completion_tokens": self.max_completion_tokens})

    @staticmethod
    def _one(given: Mapping[str, T | None]) -> T | None:
        """The value of parameters that mean the same."""
        values = {name: value for name, value in given.items() if value is not None}
        if len(set(values.values())) > 1:
            said = " and ".join(f"{name} ({value})" for name, value in values.items())
            raise InvalidRequest(f"{said} differ: send one of them", param=next(iter(values)))
        return next(iter(values.values()), None)

    def request(self, reply_id: str) -> ChatRequest:
        """The request that this body stands for; raises InvalidRequest for what contradicts itself."""
        has_functions = self.functions not in (None, [])
        if has_functions or self.function_call not in (None, "none", "auto"):
            name = "functions" if has_functions else "function_call"
            raise InvalidRequest(
                f"{name} is not supported: send tools and tool_choice, which replaced it",
                param=name,
                code="unsupported_parameter",
            )
        is_continuation = bool(self.continue_final_message)
        if is_continuation and self.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other: set one to false",
                param="continue_final_message",
            )
        begins = not is_continuation if self.add_generation_prompt is None else self.add_generation_prompt
        return ChatRequest(
            id=reply_id,
            model=self.model,
            cache_key=self.prompt_cache_key,
            priority=self.urgency,
            deadline_s=self.deadline_s,
            slo=targets_of(self.slo),
            route=wishes_of(self.route),
            guards=self.guards,
            cache=self.cache_use,
            messages=tuple(messages_from_openai(self.messages)),
            tools=tool_use_from_openai(self.tools, self.tool_choice, self.parallel_tool_calls),
            reasoning=self._reasoning_settings(),
            template_variables=self.chat_template_kwargs,
            add_generation_prompt=begins,
            continue_final_message=is_continuation,
            prediction=None if self.prediction is None else self.prediction.text,
            sampling=self.sampling(**self._sampling_of_chat(), **self.computed),
            constraint=self.constraint(),
            disable_additional_properties=self.disable_additional_properties is not False,
            finish_within_max_tokens=bool(self.finish_within_max_tokens),
            scaling=self.scaling(),
            truncate=self.truncation,
            show_prompt=bool(self.verbose),
        )

    def _sampling_of_chat(self) -> dict[str, Any]:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(
                f"top_logprobs is {self.top_logprobs}, it must be in [0, {MAX_TOP_LOGPROBS}]",
                param="top_logprobs",
            )
        more: dict[str, Any] = {} if self._limit is None else {"max_tokens": self._limit}
        if self.logprobs:
            more["logprobs"] = self.top_logprobs or 0
        return more

    def reply(self, reply_id: str, *, first_text: str | None = "") -> OpenAIReply:
        """The format of the reply; `first_text` stands in the event that opens a stream."""
        options = ReplyOptions(
            reply_id,
            self.keep,
            self.scaling(),
            self.streaming,
            shows_prompt=bool(self.verbose),
            priority=self.tier_priority,
        )
        return OpenAIReply(options, lambda _: ChatFormatter(self, first_text))


class ChatFormatter:
    """Choices of chat completions."""

    reply_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, body: ChatBody, first_text: str | None) -> None:
        self._first_text = first_text
        self._wants_logprobs = bool(body.logprobs)
        self._tops = body.prompt_logprobs or 0
        self.prompt_logprobs: PromptLogprobList | UnsetType = UNSET

    def prompt(self, event: PromptScored) -> None:
        """Log probabilities of the prompt."""
        self.prompt_logprobs = prompt_logprobs(event.tokens, self._tops)

    def opening(self, index: int) -> ChatChunkChoice:
        """The chunk that names the role."""
        return ChatChunkChoice(index, ChatDelta(role="assistant", content=self._first_text))

    def delta(self, index: int, event: OutputDelta) -> ChatChunkChoice | None:
        """New parts, or tokens whose text is buffered where their log probabilities are wanted."""
        delta = chat_delta(event.parts)
        if delta is None and not (self._wants_logprobs and event.logprobs):
            return None
        return ChatChunkChoice(index, delta or ChatDelta(content=""), self._logprobs(event.logprobs))

    def ending(self, index: int, event: OutputFinished) -> ChatChunkChoice:
        """The chunk with the finish reason and the last parts."""
        return ChatChunkChoice(index, chat_delta(event.parts) or ChatDelta(), None, event.reason, event.stop)

    def whole(
        self, index: int, prompt: int, choice: ChoiceResult, note: ScalingNote | UnsetType
    ) -> ChatChoice:
        """A whole choice."""
        ended, logprobs = choice.ended, self._logprobs(choice.logprobs)
        message = chat_message(choice.output)
        return ChatChoice(index, message, logprobs, ended.reason, ended.stop, note)

    def _logprobs(self, tokens: Sequence[TokenText]) -> ChatLogprobs | None:
        return chat_logprobs(tokens) if self._wants_logprobs else None


async def read_chat(http: HttpRequest) -> ChatBody:
    """The checked body, with what the server's settings add."""
    body = await read_checked(ChatBody, http)
    if body.verbose is None and get_service(http).settings.show_prompts:
        body.verbose = True
    return body


@Endpoint("POST", "/v1/chat/completions", body=ChatBody, reply=ChatReply, content=chunks(ChatChunk))
async def create_chat_completion(http: HttpRequest) -> Response:
    """Answer a conversation."""
    body = await read_chat(http)
    reply_id = call_of(http).new_id("chatcmpl")
    return await respond(http, body.request(reply_id), body.reply(reply_id), stream=bool(body.stream))


async def complete_chat(data: bytes, call: HttpCall, service: Service) -> Struct | Raw:
    """The endpoint without HTTP and streams, for batches."""
    body = checked_body(ChatBody, data, call)
    reply_id = call.new_id("chatcmpl")
    return await answer(service, body.request(reply_id), body.reply(reply_id), call)
