"""What bodies of text-embeddings-inference (TEI) share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw
from starlette.responses import Response

from headrace.api.http.body import RequestBody
from headrace.api.http.endpoint import Content
from headrace.api.http.errors import json_response
from headrace.api.openai.prompts import PROMPTS
from headrace.api.tasks.task_reply import TEXTS
from headrace.errors import InvalidRequest
from headrace.inference.requests import Truncation

TruncationDirection = Literal["Left", "Right", "left", "right"]


class InputsBody(RequestBody, kw_only=True):
    """Texts; one that is too long is refused unless `truncate` says that it may be cut."""

    inputs: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    model: str | None = None
    truncate: bool | None = None
    truncation_direction: TruncationDirection | None = None
    prompt_name: str | None = None

    def check_plain(self) -> None:
        """InvalidRequest for what only /embed takes."""
        if self.prompt_name is not None:
            raise InvalidRequest(
                "prompt_name is no parameter of this endpoint: send it to /embed", param="prompt_name"
            )
        refuse_left(self.truncation_direction)


class EmbedTextsBody(InputsBody, kw_only=True):
    """As InputsBody, and token ids. Vectors have length 1 unless `normalize` is false and the model says
    otherwise."""

    inputs: Annotated[Any, Meta(extra_json_schema=PROMPTS)]
    normalize: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


def refuse_left(direction: TruncationDirection | None) -> None:
    """InvalidRequest for texts that should be cut at their beginning."""
    if is_left(direction):
        raise InvalidRequest(
            "truncation_direction left is a parameter of /embed: texts are cut at their end here",
            param="truncation_direction",
        )


def cut(truncate: bool | None, direction: TruncationDirection | None) -> bool | Truncation:
    """How long texts are cut."""
    return Truncation(side="left") if truncate and is_left(direction) else bool(truncate)


def is_left(direction: TruncationDirection | None) -> bool:
    """Whether texts are cut at their beginning."""
    return direction in ("Left", "left")


def rows_of_numbers(depth: int) -> Content:
    """The schema of nested lists of numbers."""
    schema: dict[str, Any] = {"type": "number"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return Content("application/json", schema)


def raw_response(value: object) -> Response:
    """A reply that is a list. Its warnings are in a header, as those of every reply."""
    return json_response(Raw(msgspec.json.encode(value)))
