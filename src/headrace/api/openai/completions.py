"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import APIRouter
from msgspec import UNSET
from msgspec.structs import replace
from pydantic import Field, WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.openapi import TextChunk, TextReply, replies
from headrace.api.openai.best_of import ScalingBody
from headrace.api.openai.logprobs import echoed_logprobs, joined_logprobs, prompt_logprobs, text_logprobs
from headrace.api.openai.parameters import check_characters, json_schema, read_parameters
from headrace.api.openai.responder import ChoiceOutput, ResponseMeta, respond
from headrace.api.openai.schema import (
    TextChoice,
    TextLogprobs,
)
from headrace.api.service import QUICK_BODY_BYTES, get_service, key_salt, new_id
from headrace.engine.request import ChoiceFinished, Delta, EngineRequest, PromptLogprobs, TokenLogprob
from headrace.errors import ContextLengthExceeded, InvalidRequest
from headrace.tokenization.infill import Infill, infill_prompt

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

router = APIRouter()

MAX_PROMPTS = 2048
DEFAULT_MAX_TOKENS = 16  # as OpenAI's endpoint

SUFFIX = (
    "What comes after the text to be written; prompts are then texts. With `echo` the prompt is repeated, "
    "the suffix is not. Empty is as if it were not given."
)
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}


class CompletionBody(ScalingBody):
    """The body of a completion."""

    # Checked by `prompts`, which looks at tokens only when there are not too many of them.
    prompt: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: Annotated[str, Field(description=SUFFIX)] | None = None

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

    def requests(self, model: LoadedModel, request_id: str, cache_salt: str) -> list[EngineRequest]:
        """An engine request for each prompt. Tokenizes: not for the event loop."""
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        params = self.sampling(model.defaults, max_tokens=max_tokens, **self._logprobs(), **self.computed)
        scaling = self.scaling()
        prompts = self.prompts(model.context_length)
        if self.suffix:
            filled = [self._infill(model, prompt, self.suffix) for prompt in prompts]
            params = replace(params, stop_token_ids=(*params.stop_token_ids, *filled[0].end_ids))
            ids = [infill.ids for infill in filled]
        else:
            ids = [tuple(_prompt_ids(model, prompt)) for prompt in prompts]
        return [
            EngineRequest(
                prompt=prompt_ids,
                params=params,
                request_id=f"{request_id}-{index}",
                cache_salt=cache_salt,
                priority=self.priority,
                deadline_s=self.deadline_s,
                is_continuation=len(prompt) > 0,
                constraint=self.constraint(),
                scaling=scaling,
            )
            for index, (prompt, prompt_ids) in enumerate(zip(prompts, ids, strict=True))
        ]

    @staticmethod
    def _infill(model: LoadedModel, prompt: str | list[int], suffix: str) -> Infill:
        if not isinstance(prompt, str):
            raise InvalidRequest("suffix needs prompts that are texts, not token ids", param="suffix")
        check_characters(prompt, model.context_length, "prompt")
        check_characters(suffix, model.context_length, "suffix")
        return infill_prompt(model.tokenizer, prompt, suffix)

    def _logprobs(self) -> dict[str, Any]:
        more: dict[str, Any] = {} if self.logprobs is None else {"logprobs": self.logprobs}
        if self.echo and self.logprobs is not None:
            more["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        return more


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


class TextFormatter:
    """Choices of completions."""

    reply_object = "text_completion"
    chunk_object = "text_completion"

    prompt_logprobs = UNSET  # each choice has its own

    def __init__(self, model: LoadedModel, body: CompletionBody, requests: Sequence[EngineRequest]) -> None:
        self._tokenizer = model.tokenizer
        self._requests = requests
        self._wants_logprobs = body.logprobs is not None
        self._logprobs_tops, self._prompt_tops = body.logprobs or 0, body.prompt_logprobs
        self._scored: dict[int, PromptLogprobs] = {}  # by request
        self._offsets: dict[int, int] = {}
        self.keep = body.keep
        self.reasoning_tokens = 0
        self._echoed: list[str] = []
        if body.echo:
            self._echoed = [
                prompt if isinstance(prompt, str) else model.tokenizer.decode(list(prompt))
                for prompt in body.prompts(model.context_length)
            ]

    def _prompt(self, index: int) -> str:
        return self._echoed[index // self.keep] if self._echoed else ""

    def prompt(self, index: int, event: PromptLogprobs) -> None:
        """How likely the prompt of a request was."""
        self._scored[index] = event

    def _echoed_logprobs(self, index: int) -> TextLogprobs | None:
        scored = self._scored.get(index // self.keep)
        if scored is None or not self._echoed or not self._wants_logprobs:
            return None
        prompt = self._requests[index // self.keep].prompt
        return echoed_logprobs(self._tokenizer, prompt, scored.logprobs, self._logprobs_tops)

    def opening(self, index: int) -> TextChoice | None:
        """The prompt, where it is to be repeated."""
        prompt = self._prompt(index)
        self._offsets[index] = len(prompt)
        logprobs = self._echoed_logprobs(index)
        return TextChoice(index, prompt, logprobs) if prompt or logprobs else None

    def delta(self, index: int, event: Delta) -> TextChoice | None:
        """New text, or tokens whose text is held back where their log probabilities are wanted."""
        if not event.text and not (self._wants_logprobs and event.logprobs):
            return None
        return TextChoice(index, event.text, self._logprobs(index, event.logprobs))

    def ending(self, index: int, event: ChoiceFinished) -> TextChoice:
        """The chunk with the reason of the end."""
        return TextChoice(index, "", None, event.reason, event.stop)

    def whole(self, index: int, choice: ChoiceOutput) -> TextChoice:
        """A whole choice."""
        assert choice.done is not None
        prompt = self._prompt(index)
        self._offsets[index] = len(prompt)
        logprobs = self._logprobs(index, choice.logprobs)
        echoed = self._echoed_logprobs(index)
        if echoed is not None and logprobs is not None:
            logprobs = joined_logprobs(echoed, logprobs)
        scored = self._scored.get(index // self.keep)
        return TextChoice(
            index,
            prompt + "".join(choice.text),
            logprobs,
            choice.done.reason,
            choice.done.stop,
            UNSET
            if scored is None or self._prompt_tops is None
            else prompt_logprobs(self._tokenizer, scored.logprobs, self._prompt_tops),
            choice.scaling,
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
    head = ResponseMeta(new_id("cmpl"), model.name, warnings, body.include_usage)
    cache_salt = key_salt(http, body.prompt_cache_key)
    if call_of(http).body_bytes <= QUICK_BODY_BYTES:
        requests = body.requests(model, head.id, cache_salt)
    else:
        requests = await service.run_in_thread(lambda: body.requests(model, head.id, cache_salt))
    shape = TextFormatter(model, body, requests)
    return await respond(http, model, requests, shape, head, stream=bool(body.stream))
