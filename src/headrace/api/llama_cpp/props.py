"""GET /props: properties of the server and of a model."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.query import Query, read_query
from headrace.api.llama_cpp.sampling import settings_of
from headrace.api.llama_cpp.schema import DefaultSettings, Props
from headrace.api.service import get_service
from headrace.inference.local_handler import fingerprint_of

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel


class ModelQuery(Query, kw_only=True, frozen=True):
    """Which model is meant; the default one if none is named."""

    model: str | None = None


@Endpoint("GET", "/props", reply=Props, query=ModelQuery, errors={404: "No such model"})
async def props(http: HttpRequest) -> Response:
    """Context, sampling defaults, chat template and special tokens of a model. Asking is no use of it: one
    that was unloaded because it was idle stays so, and `is_sleeping` says it."""
    service = get_service(http)
    service.gate.check_started()
    entry = service.find(read_query(ModelQuery, http).model)
    known, model = _known(http), entry.model
    if model is None and entry.name not in known:  # it was never loaded: nothing is known of it
        model = await service.use(call_of(http), entry.name)
    if model is not None:
        known[entry.name] = _props(model, PurePath(entry.spec.model).name)
    return json_response(replace(known[entry.name], is_sleeping=model is None))


def _known(http: HttpRequest) -> dict[str, Props]:
    """Of each model what was last said, which holds while it is unloaded."""
    state = http.app.state
    if not hasattr(state, "known_props"):
        state.known_props = dict[str, Props]()
    return cast("dict[str, Props]", state.known_props)


def _props(model: LoadedModel, path: str) -> Props:
    tokenizer, eos_ids = model.tokenizer, sorted(model.tokenizer.eos_ids)

    def spelled(token: int | None) -> str:
        return "" if token is None else tokenizer.pieces.token_of(token) or ""

    return Props(
        default_generation_settings=DefaultSettings(
            model.context_length, settings_of(model.defaults, eos_ids)
        ),
        total_slots=model.engine.limits.max_num_seqs,
        model_alias=model.name,
        model_path=path,
        chat_template="" if model.template is None else model.template.source,
        bos_token=spelled(tokenizer.bos_id),
        eos_token=spelled(eos_ids[0] if eos_ids else None),
        build_info=fingerprint_of(model),
    )
