"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import checked_body, read_checked, targets_of, wishes_of
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.event_stream import chunks
from headrace.api.http.generation import answer, respond
from headrace.api.http.sampling_fields import bounds
from headrace.api.openai.best_of import ScalingBody
from headrace.api.openai.logprobs import echoed_logprobs, joined_logprobs, prompt_logprobs, text_logprobs
from headrace.api.openai.prompts import PROMPTS, read_prompts
from headrace.api.openai.responder import OpenAIReply, ReplyOptions
from headrace.api.openai.schema import ScalingNote, TextChoice, TextChunk, TextLogprobs, TextReply
from headrace.api.service import Service
from headrace.chat.tool_formats.events import AnswerEvent, Text
from headrace.inference.events import OutputDelta, OutputFinished, Prepared, PromptScored, TokenText
from headrace.inference.requests import CompletionRequest
from headrace.inference.result import ChoiceResult

DEFAULT_MAX_TOKENS = 16  # as OpenAI's endpoint

SUFFIX = (
    "What comes after the text to be written; prompts are then texts. With `echo` the prompt is repeated, "
    "the suffix is not. Empty is as if it were not given."
)


class CompletionBody(ScalingBody, kw_only=True):
    """The body of a completion."""

    prompt: Annotated[Any, Meta(extra_json_schema=PROMPTS)]
    logprobs: Annotated[int, bounds("logprobs")] | None = None
    echo: bool | None = None
    suffix: Annotated[str, Meta(description=SUFFIX)] | None = None
    n_predict: Annotated[int, bounds("max_tokens")] | None = None

    def request(self, reply_id: str) -> CompletionRequest:
        """The request that this body stands for."""
        asked = self.n_predict if self.max_tokens is None else self.max_tokens  # llama.cpp's name, too
        max_tokens = DEFAULT_MAX_TOKENS if asked is None else asked
        return CompletionRequest(
            id=reply_id,
            model=self.model,
            cache_key=self.prompt_cache_key,
            priority=self.urgency,
            deadline_s=self.deadline_s,
            slo=targets_of(self.slo),
            route=wishes_of(self.route),
            guards=self.guards,
            cache=self.cache_use,
            prompts=read_prompts(self.prompt, "prompt"),
            suffix=self.suffix,
            sampling=self.sampling(**{"max_tokens": max_tokens} | self._logprobs() | self.computed),
            constraint=self.constraint(),
            disable_additional_properties=self.disable_additional_properties is not False,
            finish_within_max_tokens=bool(self.finish_within_max_tokens),
            scaling=self.scaling(),
            truncate=self.truncation,
        )

    def reply(self, reply_id: str) -> OpenAIReply:
        """The format of the reply."""
        options = ReplyOptions(
            reply_id, self.keep, self.scaling(), self.streaming, priority=self.tier_priority
        )
        return OpenAIReply(options, lambda prepared: TextFormatter(self, prepared))

    def _logprobs(self) -> dict[str, Any]:
        more: dict[str, Any] = {} if self.logprobs is None else {"logprobs": self.logprobs}
        if self.echo and self.logprobs is not None:
            more["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        return more


def _text(parts: Sequence[AnswerEvent]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


class TextFormatter:
    """Choices of completions."""

    reply_object = "text_completion"
    chunk_object = "text_completion"

    prompt_logprobs = UNSET  # each choice has its own

    def __init__(self, body: CompletionBody, prepared: Prepared) -> None:
        self._wants_logprobs = body.logprobs is not None
        self._logprobs_tops, self._prompt_tops = body.logprobs or 0, body.prompt_logprobs
        self._scores: dict[int, tuple[TokenText, ...]] = {}  # by prompt
        self._offsets: dict[int, int] = {}
        self._per_prompt = prepared.choices
        self._echoed = [prompt.text for prompt in prepared.prompts] if body.echo else []

    def prompt(self, event: PromptScored) -> None:
        """Log probabilities of a prompt."""
        self._scores[event.prompt] = event.tokens

    def _echoed_logprobs(self, prompt: int) -> TextLogprobs | None:
        scores = self._scores.get(prompt)
        if scores is None or not self._echoed or not self._wants_logprobs:
            return None
        return echoed_logprobs(scores, self._logprobs_tops)

    def opening(self, index: int) -> TextChoice | None:
        """The prompt, where it is to be repeated."""
        prompt = index // self._per_prompt
        text = self._echoed[prompt] if self._echoed else ""
        self._offsets[index] = len(text)
        logprobs = self._echoed_logprobs(prompt)
        return TextChoice(index, text, logprobs) if text or logprobs else None

    def delta(self, index: int, event: OutputDelta) -> TextChoice | None:
        """New text, or tokens whose text is buffered where their log probabilities are wanted."""
        text = _text(event.parts)
        if not text and not (self._wants_logprobs and event.logprobs):
            return None
        return TextChoice(index, text, self._logprobs(index, event.logprobs))

    def ending(self, index: int, event: OutputFinished) -> TextChoice:
        """The chunk with the finish reason, and the text that a guard has held until then."""
        return TextChoice(index, _text(event.parts), None, event.reason, event.stop)

    def whole(
        self, index: int, prompt: int, choice: ChoiceResult, note: ScalingNote | UnsetType
    ) -> TextChoice:
        """A whole choice."""
        text = self._echoed[prompt] if self._echoed else ""
        self._offsets[index] = len(text)
        logprobs, echoed = self._logprobs(index, choice.logprobs), self._echoed_logprobs(prompt)
        if echoed is not None and logprobs is not None:
            logprobs = joined_logprobs(echoed, logprobs)
        scores, tops = self._scores.get(prompt), self._prompt_tops
        return TextChoice(
            index,
            text + choice.output.content,
            logprobs,
            choice.ended.reason,
            choice.ended.stop,
            UNSET if scores is None or tops is None else prompt_logprobs(scores, tops),
            note,
        )

    def _logprobs(self, index: int, tokens: Sequence[TokenText]) -> TextLogprobs | None:
        if not self._wants_logprobs:
            return None
        shaped = text_logprobs(tokens, self._offsets.get(index, 0))
        self._offsets[index] = self._offsets.get(index, 0) + sum(map(len, shaped.tokens))
        return shaped


@Endpoint("POST", "/v1/completions", body=CompletionBody, reply=TextReply, content=chunks(TextChunk))
async def create_completion(http: HttpRequest) -> Response:
    """Continue one or several prompts."""
    body = await read_checked(CompletionBody, http)
    reply_id = call_of(http).new_id("cmpl")
    return await respond(http, body.request(reply_id), body.reply(reply_id), stream=bool(body.stream))


async def complete(data: bytes, call: HttpCall, service: Service) -> Struct | Raw:
    """The endpoint without HTTP and streams, for batches."""
    body = checked_body(CompletionBody, data, call)
    reply_id = call.new_id("cmpl")
    return await answer(service, body.request(reply_id), body.reply(reply_id), call)
