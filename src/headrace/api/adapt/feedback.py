"""POST /v1/feedback: what a person or a program says of a reply."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import NotFound, json_response
from headrace.api.http.generation import done
from headrace.api.service import get_service
from headrace.errors import InvalidRequest

Id = Annotated[str, Meta(min_length=1, max_length=200, description="The reply's id, or its x-request-id.")]
Score = Annotated[float, Meta(ge=0, le=1, description="From 0, useless, to 1, right.")]
Correction = Annotated[str, Meta(min_length=1, max_length=32_768, description="The right answer.")]


class FeedbackBody(RequestBody, kw_only=True):
    """Feedback on a reply to a request of the same key; later feedback takes the place of earlier."""

    id: Id
    score: Score | None = None
    accepted: Annotated[bool, Meta(description="Whether the answer was taken as it is.")] | None = None
    correction: Correction | None = None


class FeedbackReply(Struct, frozen=True, kw_only=True):
    """It was kept."""

    id: str
    object: Literal["feedback"] = "feedback"


@Endpoint(
    "POST",
    "/v1/feedback",
    body=FeedbackBody,
    reply=FeedbackReply,
    errors={
        404: "No reply of that id and key was collected, or nothing is: see the table [adapt].",
        429: "The key has given too much feedback for a day.",
    },
)
async def give_feedback(http: HttpRequest) -> Response:
    """Keep feedback on a reply that was collected, without the personal data in it."""
    body, call, service = await read_checked(FeedbackBody, http), call_of(http), get_service(http)
    given = (body.score, body.accepted, body.correction)
    if all(one is None for one in given):
        raise InvalidRequest("feedback says nothing: give score, accepted or correction", param="score")
    if service.adapting is None:
        raise NotFound("no reply was collected: enable it with the table [adapt]", param="id")
    await done(http, service.adapting.give_feedback(body.id, *given, call))
    return json_response(FeedbackReply(id=body.id))
