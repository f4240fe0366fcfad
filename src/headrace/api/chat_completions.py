"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter
from pydantic import Field, WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.answers import ChoiceAnswer
from headrace.api.call import call_of
from headrace.api.logprobs import chat_logprobs
from headrace.api.openapi import ChatChunk, ChatReply, replies
from headrace.api.parameters import GenerationBody, check_characters, json_schema, read_parameters
from headrace.api.reply import Collected, Head, respond
from headrace.api.service import get_service, key_salt, new_id
from headrace.api.wire import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ParameterWarning,
)
from headrace.chat.conversation import Conversation, prepare
from headrace.chat.messages import messages_from_openai
from headrace.chat.template import missing_template
from headrace.chat.tools import tool_use_from_openai
from headrace.engine.request import ChoiceDone, Delta, Request, TokenLogprob
from headrace.errors import InvalidRequest
from headrace.sample.params import MAX_TOP_LOGPROBS

if TYPE_CHECKING:
    from headrace.engine.load import LoadedModel

router = APIRouter()


class ChatBody(GenerationBody):
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

    def conversation(self, model: LoadedModel, tool_format: str | None) -> Conversation:
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
        continues = bool(self.continue_final_message)
        begins = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        conversation = prepare(
            model.template,
            messages_from_openai(self.messages),
            use=tool_use_from_openai(self.tools, self.tool_choice, self.parallel_tool_calls),
            family=tool_format,
            add_generation_prompt=begins,
            continue_final_message=continues,
            variables=self.variables(model.template.reads),
        )
        check_characters(conversation.text, model.context_length, "messages")
        return conversation

    def variables(self, reads: frozenset[str]) -> dict[str, Any]:
        """What the template is given besides the messages."""
        given = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            if "reasoning_effort" in reads:
                given.setdefault("reasoning_effort", self.reasoning_effort)
            elif self.reasoning_effort == "none":
                for name in ("enable_thinking", "thinking"):
                    if name in reads:
                        given.setdefault(name, False)
        return given

    def idle_variables(self, reads: frozenset[str]) -> list[ParameterWarning]:
        """Warnings for what the template does not look at."""
        names = [
            f"chat_template_kwargs.{name}" for name in self.chat_template_kwargs or {} if name not in reads
        ]
        switches = {"enable_thinking", "thinking"} if self.reasoning_effort == "none" else set[str]()
        if self.reasoning_effort is not None and not reads & {"reasoning_effort", *switches}:
            names.append("reasoning_effort")
        message = "has no effect: this model's chat template does not read it"
        return [ParameterWarning(name, f"{name} {message}") for name in names]

    def request(self, model: LoadedModel, conversation: Conversation, request_id: str, salt: str) -> Request:
        """The engine request that this body asks for. Tokenises: not for the event loop."""
        limits = {value for value in (self.max_tokens, self.max_completion_tokens) if value is not None}
        if len(limits) > 1:
            raise InvalidRequest(
                f"max_tokens ({self.max_tokens}) and max_completion_tokens ({self.max_completion_tokens}) "
                "differ: send one of them",
                param="max_tokens",
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        more: dict[str, Any] = {"max_tokens": limits.pop()} if limits else {}
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(
                f"top_logprobs is {self.top_logprobs}, it must be in [0, {MAX_TOP_LOGPROBS}]",
                param="top_logprobs",
            )
        if self.logprobs:
            more["logprobs"] = self.top_logprobs or 0
        return Request(
            params=self.sampling(model.defaults, **more),
            # The template writes the special tokens, so none are added.
            prompt=tuple(model.tokenizer.encode(conversation.text, add_special=False)),
            request_id=request_id,
            salt=salt,
            priority=self.priority,
            deadline_s=self.deadline_s,
            visible_ids=conversation.visible_ids(model.tokenizer),
            constraint=conversation.constraint(model.tokenizer, self.constraint()),
        )


class ChatShape:
    """Choices of chat completions."""

    reply_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, model: LoadedModel, body: ChatBody, conversation: Conversation) -> None:
        self._tokenizer = model.tokenizer
        self._wants_logprobs = bool(body.logprobs)
        self.keep = body.n or 1
        plain = conversation.plain
        self._answers = [ChoiceAnswer(None if plain else conversation.parser()) for _ in range(self.keep)]

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning in all choices."""
        return sum(answer.reasoning_tokens for answer in self._answers)

    def opening(self, index: int) -> ChatChunkChoice:
        """The chunk that names the speaker."""
        return ChatChunkChoice(index, ChatDelta(role="assistant", content=""))

    def delta(self, index: int, event: Delta) -> ChatChunkChoice | None:
        """What is new, or tokens whose text is held back where their log probabilities are wanted."""
        delta = self._answers[index].feed(event.text, len(event.tokens))
        if delta is None and not (self._wants_logprobs and event.logprobs):
            return None
        return ChatChunkChoice(index, delta or ChatDelta(content=""), self._logprobs(event.logprobs))

    def ending(self, index: int, event: ChoiceDone) -> ChatChunkChoice:
        """The chunk with the reason of the end, and what the end makes certain."""
        delta, reason = self._answers[index].finish(event.reason)
        return ChatChunkChoice(index, delta or ChatDelta(), None, reason, event.stop)

    def whole(self, index: int, choice: Collected) -> ChatChoice:
        """A whole choice."""
        assert choice.done is not None
        answer = self._answers[index]
        for text, tokens in zip(choice.text, choice.token_counts, strict=True):
            answer.feed(text, tokens)
        _, reason = answer.finish(choice.done.reason)
        logprobs = self._logprobs(choice.logprobs)
        return ChatChoice(index, answer.message(), logprobs, reason, choice.done.stop)

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
    head = Head(new_id("chatcmpl"), model.name, warnings, body.include_usage)
    salt = key_salt(http, body.prompt_cache_key)

    def prepared() -> tuple[Conversation, Request]:
        conversation = body.conversation(model, service.settings.tool_format)
        return conversation, body.request(model, conversation, head.id, salt)

    conversation, request = await service.prepare(call_of(http), prepared)
    head.warnings.extend(body.idle_variables(model.template.reads if model.template else frozenset()))
    if conversation.strict_in_vain:
        message = "tools: strict has no effect with tool_choice auto, this model's calls begin without a mark"
        head.warnings.append(ParameterWarning("tools", message))
    shape = ChatShape(model, body, conversation)
    return await respond(http, model, [request], shape, head, stream=bool(body.stream))
