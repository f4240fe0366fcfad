"""POST /api/generate: continue a prompt, or answer it as a message."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from fastapi import APIRouter
from msgspec import UNSET
from msgspec.structs import replace
from pydantic import Field, WithJsonSchema
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.ollama.bodies import AnswerBody
from headrace.api.ollama.delta import OutputDelta
from headrace.api.ollama.handler import answer
from headrace.api.ollama.model_names import ResolvedModel
from headrace.api.ollama.reply import line_replies
from headrace.api.ollama.schema import OllamaGenerate, timestamp
from headrace.api.ollama.thinking import think_variables
from headrace.api.openai.parameters import check_characters, json_schema, read_parameters
from headrace.api.openai.schema import ParameterWarning
from headrace.api.service import new_id
from headrace.chat.messages import Message
from headrace.chat.prompt import ChatPrompt, prepare
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.engine.request import EngineRequest
from headrace.errors import InvalidRequest
from headrace.tokenization.infill import infill_prompt

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

router = APIRouter()

NO_IMAGES = {"type": "array", "maxItems": 0}


class GenerateBody(AnswerBody):
    """The body of /api/generate."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = dict.fromkeys(("width", "height", "steps"), ())
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    context: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    images: Annotated[Any, WithJsonSchema(NO_IMAGES)] = None

    @property
    def asks_nothing(self) -> bool:
        """Whether nothing is to be computed, only the model to be loaded or unloaded."""
        return not self.prompt

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if self.images:
            raise InvalidRequest("images cannot be read by this model, it reads text only", param="images")
        if self.template:
            raise InvalidRequest(
                "template cannot be sent: the checkpoint's own is used, or none with raw: true",
                param="template",
            )
        without_turns = "raw" if self.raw else "suffix" if self.suffix else None
        for name in ("system", "context", "think"):
            if without_turns is not None and getattr(self, name):
                raise InvalidRequest(
                    f"{without_turns} makes no turns of a conversation, so {name} has no place: "
                    "leave one of them out",
                    param=name,
                )


@router.post(
    "/api/generate",
    openapi_extra=json_schema(GenerateBody),
    responses=line_replies(OllamaGenerate),
)
async def generate(http: HttpRequest) -> Response:
    """Answer a prompt; with raw, go on with its text. An empty prompt loads the model."""
    body, warnings = await read_parameters(GenerateBody, http)
    body.check()
    return await answer(
        http, body, warnings, shape=_shape, prepare=partial(_prepare, body), gives_context=True
    )


def _shape(name: str, part: OutputDelta) -> OllamaGenerate:
    return OllamaGenerate(
        model=name,
        created_at=timestamp(),
        response=part.text,
        thinking=part.thinking or UNSET,
        logprobs=part.logprobs or UNSET,
    )


def _prepare(
    body: GenerateBody, used: ResolvedModel, tool_format: str | None, cache_salt: str
) -> tuple[EngineRequest, ChatPrompt | None, list[ParameterWarning]]:
    """The engine request, the conversation where a template made it, warnings. Not for the event loop."""
    model, prompt = used.model, body.prompt or ""
    options = body.read_options(used.parameters)
    warnings = options.warnings()
    conversation, ends = None, tuple[int, ...]()
    if body.suffix:
        check_characters(prompt + body.suffix, model.context_length, "prompt")
        infill = infill_prompt(model.tokenizer, prompt, body.suffix)
        ids, ends, constraint = infill.ids, infill.end_ids, body.constraint()
    elif not body.raw and model.template is not None:
        variables, more = think_variables(body.think, model.template, used.name)
        warnings += more
        conversation = _conversation(body, used, model.template, tool_format, variables)
        ids = _after(body.context or [], conversation.text, model)
        constraint = conversation.constraint(model.tokenizer, body.constraint())
    else:
        if not body.raw:
            warnings.append(_without_template(body, used))
        check_characters(prompt, model.context_length, "prompt")
        ids, constraint = model.tokenizer.encode_prompt(prompt), body.constraint()
    params = options.sampling(model, len(ids), top_logprobs=body.logprob_count)
    request = EngineRequest(
        prompt=tuple(ids),
        params=replace(params, stop_token_ids=(*params.stop_token_ids, *ends)),
        request_id=new_id("gen"),
        cache_salt=cache_salt,
        is_continuation=conversation is None,
        constraint=constraint,
        visible_token_ids=frozenset()
        if conversation is None
        else conversation.visible_token_ids(model.tokenizer),
    )
    return request, conversation, warnings


def _conversation(
    body: GenerateBody,
    used: ResolvedModel,
    template: ChatTemplate,
    tool_format: str | None,
    variables: dict[str, Any],
) -> ChatPrompt:
    system = body.system or used.system
    messages = [Message("system", system)] if system else []
    messages.append(Message("user", body.prompt))
    conversation = prepare(template, messages, family=tool_format, variables=variables)
    check_characters(conversation.text, used.model.context_length, "prompt")
    return conversation


def _without_template(body: GenerateBody, used: ResolvedModel) -> ParameterWarning:
    """The warning that a prompt is used as it is; raises InvalidRequest for what needs a template."""
    for name, value in (
        ("system", body.system or used.system),
        ("context", body.context),
        ("think", body.think),
    ):
        if value:
            raise InvalidRequest(
                f"{used.name} has no chat template, so {name} has no place: leave it out", param=name
            )
    return ParameterWarning(
        "raw", f"{used.name} has no chat template: the prompt was used as it is, as with raw"
    )


def _after(context: list[int], text: str, model: LoadedModel) -> list[int]:
    """The tokens of a turn after those of `context`, with one beginning of the sequence."""
    ids = model.tokenizer.encode(text, add_special=False)
    if context and ids[:1] == [model.tokenizer.bos_id]:
        ids = ids[1:]
    return [*context, *ids]
