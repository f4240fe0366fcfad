"""POST /decode, and the tokens of texts as text-embeddings-inference (TEI) gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.openai.prompts import read_prompts
from headrace.api.service import get_service
from headrace.api.tei.bodies import raw_response
from headrace.errors import InvalidRequest
from headrace.tokenization.prompts import check_characters

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

_IDS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "minItems": 1,
}
_ID_LISTS = {"anyOf": [_IDS, {"type": "array", "items": _IDS, "minItems": 1, "maxItems": 2048}]}


class TeiToken(Struct, frozen=True):
    """A token. Of a special one that was added `start` and `stop` are null, otherwise they count the code
    points before and up to its end."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def tei_tokens(
    texts: Sequence[str], model: LoadedModel, *, add_special: bool, prompt_name: str | None
) -> list[list[TeiToken]]:
    """The tokens of each text with the prompt in front. Tokenizes: not for the event loop."""
    before = model.input_rules.prompt(prompt_name) if prompt_name is not None else ""
    for text in texts:
        check_characters(text, model.context_length, "inputs")
    return [_tokens(before + text, model, add_special=add_special) for text in texts]


def _tokens(text: str, model: LoadedModel, *, add_special: bool) -> list[TeiToken]:
    found = model.tokenizer.encode_marked(text)
    own = [
        TeiToken(token, text[start:end], False, start, end)
        for token, (start, end) in zip(found.ids, found.places, strict=True)
    ]
    if not add_special:
        return own
    before, after = (
        [TeiToken(one, model.tokenizer.pieces.token_of(one) or "", True, None, None) for one in ids]
        for ids in (found.before, found.after)
    )
    return [*before, *own, *after]


class DecodeBody(RequestBody, kw_only=True):
    """Tokens of one text or of several."""

    ids: Annotated[Any, Meta(extra_json_schema=_ID_LISTS)]
    model: str | None = None
    skip_special_tokens: bool = True


@Endpoint(
    "POST",
    "/decode",
    body=DecodeBody,
    content=(Content("application/json", {"type": "array", "items": {"type": "string"}}),),
)
async def decode(http: HttpRequest) -> Response:
    """The texts of tokens."""
    service, body = get_service(http), await read_checked(DecodeBody, http)
    if isinstance(body.ids, str) or any(isinstance(one, str) for one in body.ids or ()):
        raise InvalidRequest("ids are numbers, or lists of numbers", param="ids", code="invalid_type")
    lists = cast("tuple[tuple[int, ...], ...]", read_prompts(body.ids, "ids"))
    model = await service.use(call_of(http), body.model)

    def decoded() -> list[str]:
        for token in {token for ids in lists for token in ids}:
            if model.tokenizer.pieces.token_of(token) is None:
                raise InvalidRequest(f"ids: {token} is no token of this model", param="ids")
        return [model.tokenizer.decode(ids, skip_special=body.skip_special_tokens) for ids in lists]

    return raw_response(await service.prepare_in_thread(model, decoded))
