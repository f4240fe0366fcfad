"""POST /tokenize, /detokenize and /apply-template: what a model reads, shaped as vLLM and llama.cpp do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import Json, RequestBody, TokenId, loose, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.errors import json_response
from headrace.api.openai.chat_completions import ChatBody, Effort, Messages
from headrace.api.openai.generation_body import TOOLS
from headrace.api.openai.token_schema import DecodedText, LlamaTokens, PromptText, Tokenized, TokenPiece
from headrace.api.service import get_service
from headrace.api.tasks.task_reply import TEXTS, texts_of
from headrace.api.tei.bodies import raw_response
from headrace.api.tei.errors import take_surface
from headrace.api.tei.tokens import TeiToken, tei_tokens
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.preparation import chat_prompt
from headrace.tokenization.prompts import check_characters

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

MAX_TOKENS = 2**20


class ConversationBody(RequestBody, kw_only=True):
    """A conversation as a chat template reads it."""

    model: str | None = None
    messages: Messages | None = None
    tools: Annotated[Any, loose(TOOLS)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None

    def text(self, model: LoadedModel, call: CallContext, tool_format: str | None) -> str:
        """The prompt. Renders: not for the event loop."""
        if self.messages is None:
            raise InvalidRequest(
                "messages: missing, it is required", param="messages", code="missing_required_parameter"
            )
        body = ChatBody(messages=self.messages or [], **self.template_fields())
        return chat_prompt(body.request(""), model, call, tool_format).text

    def template_fields(self) -> dict[str, Any]:
        """What else than model and messages was given for the template."""
        names = CONVERSATION - {"messages"}
        return {name: value for name in names if (value := getattr(self, name)) is not None}


CONVERSATION = frozenset(ConversationBody.__struct_fields__) - {"model"}


class TemplateBody(ConversationBody, kw_only=True):
    """A conversation that a chat template is to write out."""

    messages: Messages  # type: ignore[assignment]


_NULL = {"type": "null"}
CONTENT = (
    "A text as llama.cpp's server takes it: without special tokens unless `add_special`, and with those that "
    "stand in it unless `parse_special` is false. The reply has `tokens` alone, `with_pieces` with texts."
)


class TokenizeBody(ConversationBody):
    """A text, or a conversation, whose tokens are wanted; `inputs` are TEI's, with a list for each."""

    more_schema: ClassVar[Json] = {
        "oneOf": [
            {
                "required": ["prompt"],
                "properties": {"prompt": {"type": "string"}, **dict.fromkeys(CONVERSATION, _NULL)},
            },
            {"required": ["messages"], "properties": {"prompt": _NULL, "messages": {"type": "array"}}},
            {
                "required": ["content"],
                "properties": {
                    "prompt": _NULL,
                    "content": {"type": "string"},
                    **dict.fromkeys(CONVERSATION, _NULL),
                },
            },
            {
                "required": ["inputs"],
                "properties": {
                    "prompt": _NULL,
                    "content": _NULL,
                    "inputs": TEXTS,
                    **dict.fromkeys(CONVERSATION, _NULL),
                },
            },
        ]
    }
    prompt: str | None = None
    content: Annotated[str, Meta(description=CONTENT)] | None = None
    inputs: Annotated[Any, loose(TEXTS)] = None
    prompt_name: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Refuse fields of one form of the body beside the other."""
        llama = ("add_special", "parse_special", "with_pieces")
        if self.inputs is not None:
            mixed = (*llama, "prompt", "content", "return_token_strs", *sorted(CONVERSATION))
            wanted = "a body without inputs"
        elif self.content is None:
            mixed = (*llama, "prompt_name")
            wanted = "content, or inputs"
        else:
            names = ("prompt", "add_special_tokens", "return_token_strs", "prompt_name")
            mixed = (*names, *sorted(CONVERSATION))
            wanted = "prompt or messages"
        for name in mixed:
            if getattr(self, name) is not None:
                raise InvalidRequest(f"{name} needs {wanted}", param=name)

    def tokens_of_inputs(self, texts: list[str], model: LoadedModel) -> list[list[TeiToken]]:
        """The tokens of `inputs`."""
        special = self.add_special_tokens is not False
        return tei_tokens(texts, model, add_special=special, prompt_name=self.prompt_name)

    def tokens_of_content(self, model: LoadedModel) -> LlamaTokens:
        """The tokens of `content`."""
        assert self.content is not None
        check_characters(self.content, model.context_length, "content")
        ids = model.tokenizer.encode(
            self.content,
            add_special=bool(self.add_special),
            parse_special=self.parse_special is not False,
        )
        if not self.with_pieces:
            return LlamaTokens(list(ids))
        return LlamaTokens([TokenPiece(token, _piece(model.tokenizer.token_bytes(token))) for token in ids])

    def ids(self, model: LoadedModel, call: CallContext, tool_format: str | None) -> list[int]:
        """The tokens. A text gets those special ones that a prompt gets; templates write theirs."""
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("send either prompt or messages", param="prompt")
        if self.prompt is None:
            text, special = self.text(model, call, tool_format), bool(self.add_special_tokens)
        else:
            for name in sorted(self.template_fields()):
                raise InvalidRequest(f"{name} needs messages", param=name)
            text, special = self.prompt, self.add_special_tokens is not False
            check_characters(text, model.context_length, "prompt")
        return model.tokenizer.encode(text, add_special=special)


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


class DetokenizeBody(RequestBody, kw_only=True):
    """Tokens whose text is wanted."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]


_TOKEN_LISTS = Content("application/json", {"type": ["object", "array"]}, (Tokenized, LlamaTokens, TeiToken))


@Endpoint("POST", "/tokenize", body=TokenizeBody, content=(_TOKEN_LISTS,))
async def tokenize(http: HttpRequest) -> Response:
    """The tokens of a text, or of the prompt that a conversation becomes, and how many there may be."""
    service = get_service(http)
    body = await read_checked(TokenizeBody, http)
    call = call_of(http)
    if body.inputs is not None:
        take_surface(call)
    body.check()
    model = await service.use(call, body.model)
    if body.inputs is not None:
        texts = texts_of(body.inputs, "inputs")
        return raw_response(
            await service.prepare_in_thread(model, lambda: body.tokens_of_inputs(texts, model))
        )

    def encoded() -> Tokenized | LlamaTokens:
        if body.content is not None:
            return body.tokens_of_content(model)
        ids = body.ids(model, call, service.settings.tool_format)
        texts = [model.tokenizer.pieces.token_of(token) or "" for token in ids]
        return Tokenized(len(ids), model.context_length, ids, texts if body.return_token_strs else None)

    return json_response(await service.prepare_in_thread(model, encoded))


@Endpoint("POST", "/detokenize", body=DetokenizeBody, reply=DecodedText)
async def detokenize(http: HttpRequest) -> Response:
    """The text of tokens, special ones too."""
    service = get_service(http)
    body = await read_checked(DetokenizeBody, http)
    model = await service.use(call_of(http), body.model)

    def decoded() -> DecodedText:
        for token in body.tokens:
            if model.tokenizer.pieces.token_of(token) is None:
                raise InvalidRequest(f"tokens: {token} is no token of this model", param="tokens")
        text = model.tokenizer.decode(body.tokens, skip_special=False)
        return DecodedText(text, text)

    return json_response(await service.prepare_in_thread(model, decoded))


@Endpoint("POST", "/apply-template", body=TemplateBody, reply=PromptText)
async def apply_template(http: HttpRequest) -> Response:
    """The prompt that a conversation becomes."""
    service = get_service(http)
    body = await read_checked(TemplateBody, http)
    call = call_of(http)
    model = await service.use(call, body.model)
    text = await service.prepare_in_thread(
        model, lambda: body.text(model, call, service.settings.tool_format)
    )
    return json_response(PromptText(text))
