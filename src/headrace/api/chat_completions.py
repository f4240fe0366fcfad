"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.logprobs import chat_logprobs
from headrace.api.parameters import GenerationBody, check_characters, json_schema, read_parameters
from headrace.api.reply import Collected, Head, respond
from headrace.api.service import get_service, key_salt, new_id
from headrace.api.wire import ChatChoice, ChatChunkChoice, ChatDelta, ChatLogprobs, ChatMessage
from headrace.chat.messages import messages_from_openai
from headrace.chat.template import missing_template
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

    def request(self, model: LoadedModel, request_id: str, salt: str) -> Request:
        """The engine request that this body asks for. Renders and tokenises: not for the event loop."""
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
            prompt=tuple(render_chat(model, self)),
            request_id=request_id,
            salt=salt,
            priority=self.priority,
            deadline_s=self.deadline_s,
            constraint=self.constraint(),
        )


def render_chat(model: LoadedModel, body: ChatBody) -> list[int]:
    """Messages to token ids. The template writes the special tokens, so none are added."""
    if model.template is None:
        raise missing_template(model.name)
    continues = bool(body.continue_final_message)
    add_generation_prompt = body.add_generation_prompt
    text = model.template.render(
        messages_from_openai(body.messages),
        add_generation_prompt=not continues if add_generation_prompt is None else add_generation_prompt,
        continue_final_message=continues,
        variables=body.chat_template_kwargs,
    )
    check_characters(text, model.context_length, "messages")
    return model.tokenizer.encode(text, add_special=False)


class ChatShape:
    """Choices of chat completions."""

    reply_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, model: LoadedModel, body: ChatBody) -> None:
        self._tokenizer = model.tokenizer
        self._wants_logprobs = bool(body.logprobs)
        self.keep = body.n or 1

    def opening(self, index: int) -> ChatChunkChoice:
        """The chunk that names the speaker."""
        return ChatChunkChoice(index, ChatDelta(role="assistant", content=""))

    def delta(self, index: int, event: Delta) -> ChatChunkChoice | None:
        """New text, or tokens whose text is held back where their log probabilities are wanted."""
        if not event.text and not (self._wants_logprobs and event.logprobs):
            return None
        return ChatChunkChoice(index, ChatDelta(content=event.text), self._logprobs(event.logprobs))

    def ending(self, index: int, event: ChoiceDone) -> ChatChunkChoice:
        """The chunk with the reason of the end."""
        return ChatChunkChoice(index, ChatDelta(), None, event.reason, event.stop)

    def whole(self, index: int, choice: Collected) -> ChatChoice:
        """A whole choice."""
        assert choice.done is not None
        message = ChatMessage("".join(choice.text))
        logprobs = self._logprobs(choice.logprobs)
        return ChatChoice(index, message, logprobs, choice.done.reason, choice.done.stop)

    def _logprobs(self, logprobs: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> ChatLogprobs | None:
        return chat_logprobs(self._tokenizer, logprobs) if self._wants_logprobs else None


@router.post("/v1/chat/completions", openapi_extra=json_schema(ChatBody))
async def create_chat_completion(http: HttpRequest) -> Response:
    """Answer a conversation."""
    service = get_service(http)
    body, warnings = await read_parameters(ChatBody, http)
    service.require_model(body.model)
    head = Head(new_id("chatcmpl"), service.model.name, warnings, body.include_usage)
    salt = key_salt(http, body.prompt_cache_key)
    request = await service.off_loop(lambda: body.request(service.model, head.id, salt))
    shape = ChatShape(service.model, body)
    return await respond(http, service, [request], shape, head, stream=bool(body.stream))
