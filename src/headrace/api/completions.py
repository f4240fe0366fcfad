"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import APIRouter
from pydantic import Field, WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.call import call_of
from headrace.api.logprobs import text_logprobs
from headrace.api.openapi import TextChunk, TextReply, replies
from headrace.api.parameters import GenerationBody, check_characters, json_schema, read_parameters
from headrace.api.reply import Collected, Head, respond
from headrace.api.service import get_service, key_salt, new_id
from headrace.api.wire import (
    TextChoice,
    TextLogprobs,
)
from headrace.engine.request import ChoiceDone, Delta, Request, TokenLogprob
from headrace.errors import ContextLengthExceeded, InvalidRequest

if TYPE_CHECKING:
    from headrace.engine.load import LoadedModel

router = APIRouter()

MAX_PROMPTS = 2048
MAX_BEST_OF = 20
DEFAULT_MAX_TOKENS = 16  # as OpenAI's endpoint

PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}


class CompletionBody(GenerationBody):
    """The body of a completion."""

    # Checked by `prompts`, which looks at tokens only when there are not too many of them.
    prompt: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)]
    logprobs: int | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] | None = None
    echo: bool | None = None

    def prompts(self, context_length: int) -> list[str | list[int]]:
        """The prompts, each a text or token ids; raises ContextLengthExceeded where ids are too many."""
        prompt: object = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        entries = _list(prompt)
        if all(isinstance(entry, int) for entry in entries[:1]):
            return [_checked_ids(entries, context_length)]
        if len(entries) > MAX_PROMPTS:
            raise InvalidRequest(
                f"prompt has {len(entries):,} prompts, at most {MAX_PROMPTS:,} are allowed", param="prompt"
            )
        if all(isinstance(entry, str) for entry in entries):
            return cast("list[str | list[int]]", entries)
        return [_checked_ids(_list(entry), context_length) for entry in entries]

    def requests(self, model: LoadedModel, request_id: str, salt: str) -> list[Request]:
        """An engine request for each prompt. Tokenises: not for the event loop."""
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        params = self.sampling(model.defaults, max_tokens=max_tokens, **self._choices())
        return [
            Request(
                prompt=tuple(_prompt_ids(model, prompt)),
                params=params,
                request_id=f"{request_id}-{index}",
                salt=salt,
                priority=self.priority,
                deadline_s=self.deadline_s,
                continues=len(prompt) > 0,
                constraint=self.constraint(),
            )
            for index, prompt in enumerate(self.prompts(model.context_length))
        ]

    def _choices(self) -> dict[str, Any]:
        """Parameters of how many choices are computed; `best_of` needs log probabilities to rank by."""
        if self.echo and self.logprobs is not None:
            raise InvalidRequest(
                "echo with logprobs (log probabilities of the prompt) is not supported yet: leave one out",
                param="echo",
            )
        more: dict[str, Any] = {} if self.logprobs is None else {"logprobs": self.logprobs}
        n = self.n or 1
        if self.best_of is None or self.best_of == n:
            return more
        if self.best_of < n:
            raise InvalidRequest(f"best_of ({self.best_of}) is smaller than n ({n})", param="best_of")
        if self.stream:
            raise InvalidRequest(
                f"best_of ({self.best_of}) larger than n ({n}) cannot be streamed: leave one out",
                param="best_of",
            )
        return {"logprobs": 0, **more, "n": self.best_of}


def _prompt_ids(model: LoadedModel, prompt: str | list[int]) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    check_characters(prompt, model.context_length, "prompt")
    return model.tokenizer.encode_prompt(prompt)


def _list(value: object) -> list[object]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            "prompt is a text, token ids, or a list of several texts or of several lists of ids",
            param="prompt",
        )
    return cast("list[object]", value)


def _checked_ids(ids: list[object], context_length: int) -> list[int]:
    if len(ids) > context_length:
        raise ContextLengthExceeded(
            f"prompt has {len(ids):,} tokens, the model's limit is {context_length:,}: shorten it",
            param="prompt",
        )
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < 2**31:
            raise InvalidRequest("prompt has an entry that is no token id among token ids", param="prompt")
    return cast("list[int]", ids)


class TextShape:
    """Choices of completions."""

    reply_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, model: LoadedModel, body: CompletionBody) -> None:
        self._tokenizer = model.tokenizer
        self._wants_logprobs = body.logprobs is not None
        self._offsets: dict[int, int] = {}
        self.keep = body.n or 1
        self.reasoning_tokens = 0
        self._echoed: list[str] = []
        if body.echo:
            self._echoed = [
                prompt if isinstance(prompt, str) else model.tokenizer.decode(list(prompt))
                for prompt in body.prompts(model.context_length)
            ]

    def _prompt(self, index: int) -> str:
        return self._echoed[index // self.keep] if self._echoed else ""

    def opening(self, index: int) -> TextChoice | None:
        """The prompt, where it is to be repeated."""
        prompt = self._prompt(index)
        return TextChoice(index, prompt) if prompt else None

    def delta(self, index: int, event: Delta) -> TextChoice | None:
        """New text, or tokens whose text is held back where their log probabilities are wanted."""
        if not event.text and not (self._wants_logprobs and event.logprobs):
            return None
        return TextChoice(index, event.text, self._logprobs(index, event.logprobs))

    def ending(self, index: int, event: ChoiceDone) -> TextChoice:
        """The chunk with the reason of the end."""
        return TextChoice(index, "", None, event.reason, event.stop)

    def whole(self, index: int, choice: Collected) -> TextChoice:
        """A whole choice."""
        assert choice.done is not None
        text = self._prompt(index) + "".join(choice.text)
        return TextChoice(
            index, text, self._logprobs(index, choice.logprobs), choice.done.reason, choice.done.stop
        )

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> TextLogprobs | None:
        if not self._wants_logprobs:
            return None
        shaped = text_logprobs(self._tokenizer, logprobs, self._offsets.get(index, 0))
        self._offsets[index] = self._offsets.get(index, 0) + sum(map(len, shaped.tokens))
        return shaped


@router.post(
    "/v1/completions", openapi_extra=json_schema(CompletionBody), responses=replies(TextReply, TextChunk)
)
async def create_completion(http: HttpRequest) -> Response:
    """Continue one or several prompts."""
    service = get_service(http)
    body, warnings = await read_parameters(CompletionBody, http)
    model = await service.use(call_of(http), body.model)
    head = Head(new_id("cmpl"), model.name, warnings, body.include_usage)
    salt = key_salt(http, body.prompt_cache_key)
    requests = await service.prepare(call_of(http), lambda: body.requests(model, head.id, salt))
    shape = TextShape(model, body)
    return await respond(http, model, requests, shape, head, stream=bool(body.stream))
