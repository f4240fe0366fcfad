"""POST /v1/moderations."""

from __future__ import annotations

from typing import Annotated, Any, cast

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.service import Service, get_service, new_id
from headrace.api.tasks.task_reply import texts_of
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import ParameterWarning
from headrace.tasks.moderation import CATEGORIES, Moderation, moderate

_INPUT = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}]}


class ModerationBody(RequestBody, kw_only=True):
    """Texts, or parts of type "text". Names of OpenAI's own models stand for the configured one."""

    input: Annotated[Any, Meta(extra_json_schema=_INPUT)]
    model: str | None = None

    @property
    def own_model(self) -> str | None:
        """The model to use, if one of ours is named."""
        is_openai = self.model is not None and self.model.startswith(("omni-moderation", "text-moderation"))
        return None if is_openai else self.model


class ModerationResult(Struct, frozen=True):
    """What is said of one text."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class ModerationList(Struct, frozen=True):
    """The results of a request's texts, in their order."""

    id: str
    model: str
    results: list[ModerationResult]
    warnings: list[ParameterWarning] | UnsetType = UNSET


@Endpoint("POST", "/v1/moderations", body=ModerationBody, reply=ModerationList)
async def create_moderation(http: HttpRequest) -> Response:
    """Scores of OpenAI's categories, by the classifier of the table [moderation] of headrace.toml."""
    body = await read_checked(ModerationBody, http)
    return json_response(await done(http, _moderated(body, call_of(http), get_service(http))))


async def _moderated(body: ModerationBody, call: CallContext, service: Service) -> ModerationList:
    settings = service.moderation
    if settings is None:
        raise InvalidRequest(
            "no classifier is configured for moderation: write a table [moderation] with a model and a map of"
            " its labels into headrace.toml",
            code="unsupported_endpoint",
        )
    texts = texts_of(_texts(body.input), "input")
    found = await moderate(service.runner, settings, body.own_model, texts, call)
    covered = set(settings.map.values())
    return ModerationList(
        new_id("modr"), call.model, [_result(one, covered) for one in found], call.warnings or UNSET
    )


def _result(one: Moderation, covered: set[str]) -> ModerationResult:
    types = {name: ["text"] if name in covered else [] for name in CATEGORIES}
    return ModerationResult(any(one.flagged.values()), one.flagged, one.scores, types)


def _texts(given: object) -> object:
    """The texts of parts, which are one input together as OpenAI has it; anything else as it is."""
    if not isinstance(given, list) or not any(isinstance(one, dict) for one in cast("list[object]", given)):
        return cast("object", given)
    texts: list[str] = []
    for index, one in enumerate(cast("list[object]", given)):
        part = cast("dict[str, object]", one) if isinstance(one, dict) else {}
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            raise InvalidRequest(
                f'input[{index}] is no part of type "text", and others are not read', param="input"
            )
        texts.append(text)
    return ["\n".join(texts)]
