"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.openapi import ChatChunk, ChatReply, replies
from headrace.api.openai.best_of import ScalingBody
from headrace.api.openai.logprobs import chat_logprobs, prompt_logprobs
from headrace.api.openai.output_formatter import ChoiceAnswer
from headrace.api.openai.parameters import check_characters, json_schema, read_parameters
from headrace.api.openai.prediction import PREDICTION, Prediction
from headrace.api.openai.responder import ChoiceOutput, ResponseMeta, respond
from headrace.api.openai.schema import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ParameterWarning,
    PromptLogprobList,
)
from headrace.api.openai.template_variables import idle_variables, template_variables
from headrace.api.service import get_service, key_salt, new_id
from headrace.chat.messages import messages_from_openai
from headrace.chat.prompt import CONTINUATION, STRICT_UNAVAILABLE, ChatPrompt, prepare
from headrace.chat.templates.chat_template import missing_template
from headrace.chat.tools import tool_use_from_openai
from headrace.engine.request import ChoiceFinished, Delta, EngineRequest, PromptLogprobs, TokenLogprob
from headrace.errors import InvalidRequest
from headrace.sampling.params import MAX_TOP_LOGPROBS
from headrace.sampling.reasoning_budget import ReasoningBudget

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

router = APIRouter()

T = TypeVar("T")


REASONING = {
    "type": "object",
    "properties": {
        "effort": {"type": ["string", "null"], "maxLength": 20},
        "max_tokens": {"type": ["integer", "null"], "minimum": 0},
    },
    "additionalProperties": False,
}


MIN_THINKING = (
    "Reasoning has at least so many tokens: where the model would end it before, `thinking_continuation`, by "
    'default "Wait", stands in place of the end. It counts, too. Cannot be combined with logprobs.'
)


class ReasoningOptions(BaseModel):
    """`reasoning` as OpenRouter has it: another place for effort and budget."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    effort: Annotated[str, Field(max_length=20)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None


class ChatBody(ScalingBody):
    """The body of a chat completion."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "object"}})] = None
    tool_choice: Annotated[Any, WithJsonSchema({"type": ["string", "object"]})] = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Any, WithJsonSchema({"type": "array", "maxItems": 0, "deprecated": True})] = None
    function_call: Annotated[Any, WithJsonSchema({"enum": ["none", "auto"], "deprecated": True})] = None
    reasoning_effort: Annotated[str, Field(max_length=20)] | None = None
    thinking_token_budget: Annotated[int, Field(ge=0)] | None = None
    thinking_budget: Annotated[int, Field(ge=0)] | None = None
    min_thinking_tokens: Annotated[int, Field(ge=0, description=MIN_THINKING)] | None = None
    thinking_continuation: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    reasoning: Annotated[ReasoningOptions, WithJsonSchema(REASONING)] | None = None
    prediction: Annotated[Prediction, WithJsonSchema(PREDICTION)] | None = None

    def conversation(self, model: LoadedModel, tool_format: str | None) -> ChatPrompt:
        """Messages and tools made ready for `model`. Renders: not for the event loop."""
        if model.template is None:
            raise missing_template(model.name)
        if self.functions or self.function_call not in (None, "none", "auto"):
            name = "functions" if self.functions else "function_call"
            raise InvalidRequest(
                f"{name} is not supported: send tools and tool_choice, which replaced it",
                param=name,
                code="unsupported_parameter",
            )
        is_continuation = bool(self.continue_final_message)
        begins = not is_continuation if self.add_generation_prompt is None else self.add_generation_prompt
        conversation = prepare(
            model.template,
            messages_from_openai(self.messages),
            use=tool_use_from_openai(self.tools, self.tool_choice, self.parallel_tool_calls),
            family=tool_format,
            add_generation_prompt=begins,
            continue_final_message=is_continuation,
            variables=template_variables(self.chat_template_kwargs, self.effort, model.template.reads),
        )
        check_characters(conversation.text, model.context_length, "messages")
        return conversation

    @property
    def effort(self) -> str | None:
        """How much the model should reason."""
        return self._one({"reasoning_effort": self.reasoning_effort, "reasoning": self._reasoning.effort})

    @property
    def _reasoning(self) -> ReasoningOptions:
        return self.reasoning or ReasoningOptions()

    def _thinking(self, model: LoadedModel, conversation: ChatPrompt) -> ReasoningBudget | None:
        names = {
            "thinking_token_budget": self.thinking_token_budget,
            "thinking_budget": self.thinking_budget,
            "reasoning": self._reasoning.max_tokens,
        }
        budget, least = self._one(names), self.min_thinking_tokens or 0
        if self.thinking_continuation is not None and not least:
            raise InvalidRequest(
                "thinking_continuation needs min_thinking_tokens: send both", param="thinking_continuation"
            )
        if budget is None and not least:
            return None
        param = next((name for name, value in names.items() if value is not None), "min_thinking_tokens")
        limit = self._limit
        for name, value in ((param, budget), ("min_thinking_tokens", least)):
            if limit is not None and value is not None and value > limit:
                raise InvalidRequest(
                    f"{name} ({value:,}) is larger than max_tokens ({limit:,}), which bounds reasoning and "
                    "answer together: change one of them",
                    param=name,
                )
        return conversation.thinking(
            model.tokenizer,
            budget,
            param=param,
            min_tokens=least,
            continuation=self.thinking_continuation or CONTINUATION,
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

    def request(
        self, model: LoadedModel, conversation: ChatPrompt, request_id: str, cache_salt: str
    ) -> EngineRequest:
        """The engine request that this body asks for. Tokenizes: not for the event loop."""
        limit = self._limit
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        more: dict[str, Any] = {} if limit is None else {"max_tokens": limit}
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(
                f"top_logprobs is {self.top_logprobs}, it must be in [0, {MAX_TOP_LOGPROBS}]",
                param="top_logprobs",
            )
        if self.logprobs:
            more["logprobs"] = self.top_logprobs or 0
        thinking, scaling = self._thinking(model, conversation), self.scaling(conversation.answer_span)
        request = self.conversation_request(
            model, conversation, request_id, cache_salt, thinking, **more, **self.computed
        )
        request = replace(request, scaling=scaling)
        if self.prediction is None:
            return request
        check_characters(self.prediction.text, model.context_length, "prediction")
        predicted = model.tokenizer.encode(self.prediction.text, add_special=False, parse_special=False)
        return replace(request, prediction=tuple(predicted))


class ChatFormatter:
    """Choices of chat completions."""

    reply_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, model: LoadedModel, body: ChatBody, conversation: ChatPrompt) -> None:
        self._tokenizer = model.tokenizer
        self._wants_logprobs = bool(body.logprobs)
        self.keep = body.keep
        self._tops = body.prompt_logprobs or 0
        self.prompt_logprobs: PromptLogprobList | UnsetType = UNSET
        plain = conversation.plain
        self._answers = [ChoiceAnswer(None if plain else conversation.parser()) for _ in range(self.keep)]

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning in all choices."""
        return sum(answer.reasoning_tokens for answer in self._answers)

    def prompt(self, index: int, event: PromptLogprobs) -> None:
        """How likely the prompt was."""
        self.prompt_logprobs = prompt_logprobs(self._tokenizer, event.logprobs, self._tops)

    def opening(self, index: int) -> ChatChunkChoice:
        """The chunk that names the speaker."""
        return ChatChunkChoice(index, ChatDelta(role="assistant", content=""))

    def delta(self, index: int, event: Delta) -> ChatChunkChoice | None:
        """What is new, or tokens whose text is held back where their log probabilities are wanted."""
        delta = self._answers[index].feed(event.text, len(event.tokens))
        if delta is None and not (self._wants_logprobs and event.logprobs):
            return None
        return ChatChunkChoice(index, delta or ChatDelta(content=""), self._logprobs(event.logprobs))

    def ending(self, index: int, event: ChoiceFinished) -> ChatChunkChoice:
        """The chunk with the reason of the end, and what the end makes certain."""
        delta, reason = self._answers[index].finish(event.reason)
        return ChatChunkChoice(index, delta or ChatDelta(), None, reason, event.stop)

    def whole(self, index: int, choice: ChoiceOutput) -> ChatChoice:
        """A whole choice."""
        assert choice.done is not None
        answer = self._answers[index]
        for text, tokens in zip(choice.text, choice.token_counts, strict=True):
            answer.feed(text, tokens)
        _, reason = answer.finish(choice.done.reason)
        logprobs = self._logprobs(choice.logprobs)
        return ChatChoice(index, answer.message(), logprobs, reason, choice.done.stop, choice.scaling)

    def _logprobs(self, logprobs: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> ChatLogprobs | None:
        return chat_logprobs(self._tokenizer, logprobs) if self._wants_logprobs else None


@router.post(
    "/v1/chat/completions", openapi_extra=json_schema(ChatBody), responses=replies(ChatReply, ChatChunk)
)
async def create_chat_completion(http: HttpRequest) -> Response:
    """Answer a conversation."""
    service = get_service(http)
    body, warnings = await read_parameters(ChatBody, http)
    model = await service.use(call_of(http), body.model)
    head = ResponseMeta(new_id("chatcmpl"), model.name, warnings, body.include_usage)
    cache_salt = key_salt(http, body.prompt_cache_key)

    def prepared() -> tuple[ChatPrompt, EngineRequest]:
        conversation = body.conversation(model, service.settings.tool_format)
        return conversation, body.request(model, conversation, head.id, cache_salt)

    conversation, request = await service.run_in_thread(prepared)
    reads = model.template.reads if model.template else frozenset[str]()
    idle = idle_variables(body.chat_template_kwargs, body.effort, reads, "reasoning_effort")
    head.warnings.extend(idle)
    if conversation.strict_unavailable:
        head.warnings.append(ParameterWarning("tools", STRICT_UNAVAILABLE))
    shape = ChatFormatter(model, body, conversation)
    return await respond(http, model, [request], shape, head, stream=bool(body.stream))
