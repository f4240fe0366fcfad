"""POST /api/generate: continue a prompt, or answer it as a message."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import TokenId, Values, loose, read_checked
from headrace.api.http.call_context import HttpCall
from headrace.api.http.endpoint import Endpoint
from headrace.api.ollama.bodies import AnswerBody
from headrace.api.ollama.delta import OllamaDelta
from headrace.api.ollama.handler import answer, generation
from headrace.api.ollama.images import images_of
from headrace.api.ollama.model_names import ResolvedModel
from headrace.api.ollama.reply import lines_of
from headrace.api.ollama.schema import OllamaGenerate, timestamp
from headrace.api.ollama.thinking import think_settings
from headrace.chat.messages import Message
from headrace.errors import InvalidRequest
from headrace.inference.requests import ChatRequest, CompletionRequest

IMAGES = {"type": "array", "items": {"type": "string"}, "description": "Base64, for remote models that see."}


class GenerateBody(AnswerBody):
    """The body of /api/generate."""

    unsupported: ClassVar[Mapping[str, Values]] = dict.fromkeys(("width", "height", "steps"), ())
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: Annotated[str, Meta(extra_json_schema={"maxLength": 0})] | None = None
    raw: bool | None = None
    context: list[TokenId] | None = None
    images: Annotated[Any, loose(IMAGES)] = None

    @property
    def asks_nothing(self) -> bool:
        """Whether nothing is to be computed, only the model to be loaded or unloaded."""
        return not self.prompt

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if self.template:
            raise InvalidRequest(
                "template cannot be sent: the checkpoint's own is used, or none with raw: true",
                param="template",
            )
        without_turns = "raw" if self.raw else "suffix" if self.suffix else None
        for name in ("system", "context", "think", "images"):
            if without_turns is not None and getattr(self, name):
                raise InvalidRequest(
                    f"{without_turns} makes no turns of a conversation, so {name} has no place: "
                    "leave one of them out",
                    param=name,
                )


@Endpoint("POST", "/api/generate", body=GenerateBody, reply=OllamaGenerate, content=lines_of(OllamaGenerate))
async def generate(http: HttpRequest) -> Response:
    """Answer a prompt; with raw, go on with its text. An empty prompt loads the model."""
    body = await read_checked(GenerateBody, http)
    body.check()
    return await answer(http, body, shape=_shape, make_request=partial(_request, body), gives_context=True)


def _shape(name: str, part: OllamaDelta) -> OllamaGenerate:
    return OllamaGenerate(
        model=name,
        created_at=timestamp(),
        response=part.text,
        thinking=part.thinking or UNSET,
        logprobs=part.logprobs or UNSET,
    )


def _request(body: GenerateBody, used: ResolvedModel, call: HttpCall) -> ChatRequest | CompletionRequest:
    """A conversation of one turn; the prompt itself with raw, suffix, or where the model has no template."""
    prompt = body.prompt or ""
    given: dict[str, Any] = {"id": call.new_id("gen"), **generation(body, used, call)}
    if body.suffix:
        return CompletionRequest(prompts=(prompt,), suffix=body.suffix, **given)
    if body.raw or not used.is_chat:
        if not body.raw:
            _warn_without_template(body, used, call)
        return CompletionRequest(prompts=(prompt,), **given)
    system = body.system or used.system
    messages = [Message("system", system)] if system else []
    return ChatRequest(
        messages=(*messages, Message("user", prompt, images=images_of(body.images, "images"))),
        reasoning=think_settings(body.think),
        context=tuple(body.context or ()),
        **given,
    )


def _warn_without_template(body: GenerateBody, used: ResolvedModel, call: HttpCall) -> None:
    """Warn that a prompt is used as it is; raises InvalidRequest for what needs a template."""
    for name, value in (
        ("system", body.system or used.system),
        ("context", body.context),
        ("think", body.think),
        ("images", body.images),
    ):
        if value:
            raise InvalidRequest(
                f"{used.name} has no chat template, so {name} has no place: leave it out", param=name
            )
    call.warn("raw", f"{used.name} has no chat template: the prompt was used as it is, as with raw")
