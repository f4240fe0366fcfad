"""Which requests have one answer, and under which key it is kept.

The key is over every field of the request, by their order in the struct: a field that is added to it later
changes keys by itself. What changes no byte of an answer is listed here, each with the reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.gateway.typed_values import encode_value
from headrace.inference.call_context import CallContext
from headrace.inference.requests import ChatRequest, CompletionRequest, GenerationRequest, InferenceRequest
from headrace.sampling.params import SamplingParams

WITHOUT_EFFECT: Mapping[str, str] = {
    "id": "names the reply; replies carry the id of their own request",
    "model": "the identity of what answers stands for it: an alias is the same model",
    "keep_alive_s": "says how long the model stays in memory",
    "priority": "says when it is computed",
    "deadline_s": "ends a request with an error, and errors are not kept",
    "slo": "says when it is computed; the answer of a fallback is not kept",
    "cache": "says whether the cache may be used",
}
"""Fields that change no byte of an answer that is kept, and why."""


class ModelIdentity(Struct, frozen=True, kw_only=True):
    """What answers. `digest` changes with whatever may change an answer: of a model of this machine weights,
    their type, template, settings and this version; of a remote one the provider's address and its name.

    `params` are the sampling parameters of this request with the model's defaults, None for a remote one.
    `now` is what a template reads of the calendar.
    """

    name: str
    digest: bytes
    params: SamplingParams | None = None
    now: str = ""
    is_local: bool = True


def is_candidate(request: InferenceRequest, call: CallContext) -> bool:
    """Whether the answer to a request may be kept or come from the cache, as far as it says itself.

    Tool results stand for work elsewhere that is not repeated by asking again: such turns are left out.
    """
    if not isinstance(request, ChatRequest | CompletionRequest) or request.cache == "off" or call.no_store:
        return False
    return not (isinstance(request, ChatRequest) and any(one.role == "tool" for one in request.messages))


def is_deterministic(request: GenerationRequest, identity: ModelIdentity) -> bool:
    """Whether the same request gets the same answer: by contract of models of this machine with a seed or
    temperature 0; of remote models, where these were opted in, with temperature 0 as far as one knows."""
    params = identity.params
    if params is None:
        return request.sampling.get("temperature") == 0
    return params.temperature == 0 or params.seed is not None or params.use_beam_search


def key_of(request: GenerationRequest, identity: ModelIdentity, tenant: bytes) -> bytes:
    """The key of the answer to a request [32 bytes]. Raises NotEncodable."""
    return _digest(b"answer", tenant, identity, _fields(request, identity))


def partition_of(request: ChatRequest, identity: ModelIdentity, tenant: bytes) -> bytes:
    """What requests have in common whose last message of the user alone differs [32 bytes]: among their
    answers near ones are looked for. Raises NotEncodable."""
    fields = _fields(request, identity)
    fields["messages"] = [
        one for index, one in enumerate(request.messages) if index != last_user_turn(request)
    ]
    fields["place"] = last_user_turn(request)
    return _digest(b"partition", tenant, identity, fields)


def last_user_turn(request: ChatRequest) -> int | None:
    """The index of the last message of the user."""
    places = [index for index, one in enumerate(request.messages) if one.role == "user"]
    return places[-1] if places else None


def _fields(request: GenerationRequest, identity: ModelIdentity) -> dict[str, Any]:
    found = {name: getattr(request, name) for name in request.__struct_fields__ if name not in WITHOUT_EFFECT}
    params = identity.params
    found["sampling"] = dict(sorted(request.sampling.items())) if params is None else params
    return found


def _digest(purpose: bytes, tenant: bytes, identity: ModelIdentity, fields: dict[str, Any]) -> bytes:
    kind = "ChatRequest" if "messages" in fields else "CompletionRequest"
    parts = (purpose, tenant, identity.name, identity.digest, identity.now, kind, fields)
    return hashlib.sha256(encode_value(parts)).digest()
