"""POST /tokenize, /detokenize and /apply-template: what a model reads, shaped as vLLM and llama.cpp do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.errors import json_response
from headrace.api.http.openapi import replies, request_body
from headrace.api.http.request_body import read_body
from headrace.api.openai.chat_completions import ChatBody
from headrace.api.openai.parameters import parse_body
from headrace.api.openai.schema import PromptText, Tokenized
from headrace.api.service import get_service
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.preparation import chat_prompt, check_characters

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

router = APIRouter()

MAX_TOKENS = 2**20


class TemplateBody(BaseModel):
    """A conversation that a chat template is to write out."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    model: str | None = None
    messages: Annotated[list[dict[str, Any]] | None, Field(min_length=1)] = None
    tools: Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "object"}})] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Annotated[str, Field(max_length=20)] | None = None

    def text(self, model: LoadedModel, call: CallContext, tool_format: str | None) -> str:
        """The prompt. Renders: not for the event loop."""
        if self.messages is None:
            raise InvalidRequest("messages is missing", param="messages")
        given = self.model_dump(include=set(TemplateBody.model_fields), exclude_none=True)
        return chat_prompt(ChatBody.model_validate(given).request(""), model, call, tool_format).text


class TokenizeBody(TemplateBody):
    """A text, or a conversation, whose tokens are wanted."""

    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def ids(self, model: LoadedModel, call: CallContext, tool_format: str | None) -> list[int]:
        """The tokens. A text gets those special ones that a prompt gets; templates write theirs."""
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("send either prompt or messages", param="prompt")
        if self.prompt is None:
            text, special = self.text(model, call, tool_format), bool(self.add_special_tokens)
        else:
            misplaced = self.model_fields_set & set(TemplateBody.model_fields) - {"model", "messages"}
            if misplaced:
                name = min(misplaced)
                raise InvalidRequest(f"{name} needs messages", param=name)
            text, special = self.prompt, self.add_special_tokens is not False
            check_characters(text, model.context_length, "prompt")
        return model.tokenizer.encode(text, add_special=special)


class DetokenizeBody(BaseModel):
    """Tokens whose text is wanted."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MAX_TOKENS)]


def _schema(kind: type[BaseModel], **required: Any) -> dict[str, Any]:
    return request_body(lambda: kind.model_json_schema() | required)


@router.post(
    "/tokenize",
    openapi_extra=_schema(TokenizeBody, oneOf=[{"required": ["prompt"]}, {"required": ["messages"]}]),
    responses=replies(Tokenized),
)
async def tokenize(http: HttpRequest) -> Response:
    """The tokens of a text, or of the prompt that a conversation becomes, and how many there may be."""
    service = get_service(http)
    body = parse_body(TokenizeBody, await read_body(http))
    call = call_of(http)
    model = await service.use(call, body.model)

    def encoded() -> Tokenized:
        ids = body.ids(model, call, service.settings.tool_format)
        texts = [model.tokenizer.pieces.token_of(token) or "" for token in ids]
        return Tokenized(len(ids), model.context_length, ids, texts if body.return_token_strs else None)

    return json_response(await service.prepare_in_thread(model, encoded))


@router.post("/detokenize", openapi_extra=_schema(DetokenizeBody), responses=replies(PromptText))
async def detokenize(http: HttpRequest) -> Response:
    """The text of tokens, special ones too."""
    service = get_service(http)
    body = parse_body(DetokenizeBody, await read_body(http))
    model = await service.use(call_of(http), body.model)

    def decoded() -> PromptText:
        for token in body.tokens:
            if model.tokenizer.pieces.token_of(token) is None:
                raise InvalidRequest(f"tokens: {token} is no token of this model", param="tokens")
        return PromptText(model.tokenizer.decode(body.tokens, skip_special=False))

    return json_response(await service.prepare_in_thread(model, decoded))


@router.post(
    "/apply-template",
    openapi_extra=_schema(TemplateBody, required=["messages"]),
    responses=replies(PromptText),
)
async def apply_template(http: HttpRequest) -> Response:
    """The prompt that a conversation becomes."""
    service = get_service(http)
    body = parse_body(TemplateBody, await read_body(http))
    call = call_of(http)
    model = await service.use(call, body.model)
    text = await service.prepare_in_thread(
        model, lambda: body.text(model, call, service.settings.tool_format)
    )
    return json_response(PromptText(text))
