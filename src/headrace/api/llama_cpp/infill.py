"""POST /infill: write what stands between two texts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.llama_cpp.body import GenerationBody
from headrace.api.llama_cpp.completion import EVENTS, WHOLE, complete
from headrace.api.llama_cpp.schema import LlamaCompletion

EXTRA = "Other files of the project. They stand before the prefix, each after its name."


class ExtraFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the project."""

    text: str
    filename: str


class InfillBody(GenerationBody, kw_only=True):
    """The texts around a gap; `prompt` is the part of the line before it."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Meta(description=EXTRA)] | None = None
    prompt: str | None = None


@Endpoint("POST", "/infill", body=InfillBody, reply=LlamaCompletion, content=(WHOLE, EVENTS))
async def infill(http: HttpRequest) -> Response:
    """Fill a gap. The model must know marks for that; an empty suffix only continues."""
    body = await read_checked(InfillBody, http)
    extra = "".join(f"{file.filename}\n{file.text}\n" for file in body.input_extra or ())
    if extra:
        call_of(http).warn("input_extra", "input_extra was put before input_prefix as plain text")
    return await complete(http, body, extra + body.input_prefix + (body.prompt or ""), body.input_suffix)
