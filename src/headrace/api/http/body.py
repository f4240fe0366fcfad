"""Bodies of requests as structs: parsed, checked, and described for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest

from headrace.api.http.body_errors import make_integer, refusal_of
from headrace.api.http.body_limits import LARGE_BODY_BYTES, refuse_many_values
from headrace.api.http.call_context import call_of
from headrace.api.http.request_body import read_body
from headrace.api.service import get_service
from headrace.config.names import nearest
from headrace.engine.request import Targets
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import ParameterWarning
from headrace.inference.requests import CacheUse, RouteWishes
from headrace.json_text import has_key_twice, key_twice
from headrace.struct_types import thread_safe

Json = dict[str, Any]
Values = tuple[object, ...]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Body = TypeVar("Body", bound="RequestBody")
Part = TypeVar("Part", bound=Struct)

MAX_WHOLE_FLOATS = 16  # which are integers to JSON Schema, each of which costs a pass over the body
EXPLAIN = "the reply has a field explain: what was done, the seconds of each part, and those predicted"
NAMED_BYTES = 2**20
"""In larger bodies a key that is there twice is not looked for: that would take a second."""


def loose(schema: Json) -> Meta:
    """How the document describes a field that its endpoint checks itself; null means that it is not given."""
    rest = dict(schema)
    description = {"description": rest.pop("description")} if "description" in rest else {}
    return Meta(extra_json_schema=description | {"anyOf": [rest, {"type": "null"}]})


class RequestBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A body. A field that is None was not given; any other field than these is refused.

    `no_effect` are fields that clients send as a matter of course: each given one stands in `warnings`, but
    for the values listed, which ask for what happens anyway. `unsupported` are refused, but for the values
    listed. `elsewhere` are parameters of other endpoints, also inherited ones, and what takes their place.
    The document describes the fields in `parts` by another body, and the whole with `more_schema`, too.
    """

    no_effect: ClassVar[Mapping[str, Values]] = {}
    unsupported: ClassVar[Mapping[str, Values]] = {}
    elsewhere: ClassVar[Mapping[str, str]] = {}
    parts: ClassVar[Mapping[str, type[RequestBody]]] = {}
    more_schema: ClassVar[Json] = {}
    unsupported_text: ClassVar[str] = "{name} is not supported yet, leave it out"
    explain: Annotated[bool, Meta(description=EXPLAIN)] | None = None

    @classmethod
    def prepared(cls, content: object) -> object:
        """The decoded JSON as it is read: for surfaces whose fields have several names."""
        return content

    def warnings(self) -> list[ParameterWarning]:
        """Warnings for values without effect; raises InvalidRequest for what contradicts itself."""
        return []


@cache
def _known(kind: type[RequestBody]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind)) - kind.elsewhere.keys()


_TEXT_FIELDS = ("input", "inputs", "documents", "texts", "text_2", "sentences", "text", "prompt")


@cache
def _text_field(kind: type[RequestBody]) -> str:
    fields = kind.__struct_fields__
    return next((name for name in _TEXT_FIELDS if name in fields), "input")


async def read_checked(kind: type[Body], http: HttpRequest) -> Body:
    """The body of `http`, checked; its warnings are the call's. Large ones are parsed off the event loop."""
    data, call = await read_body(http), call_of(http)
    call.text_field = _text_field(kind)
    if len(data) > LARGE_BODY_BYTES:
        return await get_service(http).parse_in_thread(lambda: checked_body(kind, data, call))
    return checked_body(kind, data, call)


def checked_body(kind: type[Body], data: bytes, call: CallContext) -> Body:
    """A body from its JSON, with its warnings among the call's; InvalidRequest names the first bad field."""
    if len(data) > LARGE_BODY_BYTES:
        refuse_many_values(data)
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}", code="invalid_json") from None
    _refuse_key_twice(data, content)
    body, warnings = checked(kind, kind.prepared(content))
    call.warnings += warnings
    call.explain = call.explain or bool(body.explain)
    return body


def _refuse_key_twice(data: bytes, content: object) -> None:
    """InvalidRequest, with its name, where an object in the body has a key twice."""
    if has_key_twice(data, content):
        key = key_twice(data)[:80] if len(data) <= NAMED_BYTES else ""
        raise InvalidRequest(
            f"the body has {f'the key {key!r}' if key else 'a key'} twice in one object: send it once",
            param=key or None,
            code="duplicate_key",
        )


def checked(kind: type[Body], content: object) -> tuple[Body, list[ParameterWarning]]:
    """A body from decoded JSON, and its warnings; InvalidRequest names the first bad field."""
    found: list[ParameterWarning] = []
    if isinstance(content, dict):
        content, found = _split(kind, cast("Json", content))
    body = converted(kind, content)
    return body, found + body.warnings()


def converted(kind: type[Part], content: object, *, place: str = "", strict: bool = True) -> Part:
    """A struct from decoded JSON; InvalidRequest names the first bad field, within the field `place`.

    Unless `strict`, texts may stand for numbers and switches.
    """
    kind = thread_safe(kind)
    for _ in range(MAX_WHOLE_FLOATS):
        try:
            return msgspec.convert(content, kind, strict=strict)
        except msgspec.ValidationError as error:
            if not make_integer(error, content):
                raise refusal_of(error, kind, content, place) from None
    raise InvalidRequest(
        f"more than {MAX_WHOLE_FLOATS} integers are written with a fraction: write 1 for 1.0",
        code="invalid_type",
    )


def _split(kind: type[RequestBody], content: Json) -> tuple[Json, list[ParameterWarning]]:
    """The fields that the struct has, and warnings for others; InvalidRequest for one that is refused."""
    known, rest = _known(kind), dict[str, object]()
    found: list[ParameterWarning] = []
    if content.keys() <= known:
        return content, found
    for name, value in content.items():
        if name in known:
            rest[name] = value
        elif kind.elsewhere.get(name) and value is not None:
            text = f"{name} is no parameter of this endpoint: send {kind.elsewhere[name]}"
            raise InvalidRequest(text, param=name, code="unknown_parameter")
        elif name not in kind.no_effect and name not in kind.unsupported and not kind.elsewhere.get(name):
            close = nearest(name[:80], [*known, *kind.no_effect, *kind.unsupported])
            text = f"unknown parameter {name[:80]!r}{close if len(close) < 80 else ''}"
            raise InvalidRequest(text, param=name[:80], code="unknown_parameter")
        elif value is None or _is_one_of(value, kind.no_effect.get(name, kind.unsupported.get(name, ()))):
            continue
        elif name in kind.unsupported:
            text = kind.unsupported_text.format(name=name)
            raise InvalidRequest(text, param=name, code="unsupported_parameter")
        else:
            found.append(without_effect(name))
    return rest, found


def without_effect(name: str, why: str = "") -> ParameterWarning:
    """The warning for a field that was accepted and does nothing."""
    return ParameterWarning(name, f"{name} was accepted and has no effect{why and f': {why}'}")


def _is_one_of(value: object, values: Values) -> bool:
    """Whether it is one of them as JSON: 0 is not false."""
    return any(type(value) is type(one) and value == one for one in values)


def completed_schema(kind: type[RequestBody], schemas: Mapping[type[Struct], Json]) -> Json:
    """The schema of a body, from those that msgspec makes of structs, which know only fields with effect."""
    schema = schemas[kind]
    fields: Json = {name: {"description": "Has no effect."} for name in kind.no_effect}
    for name, values in kind.unsupported.items():
        text = "Not supported yet: any other value is refused."
        fields[name] = {"description": text, "enum": [None, *values]}
    fields |= {name: entry for name, entry in schema["properties"].items() if name not in kind.elsewhere}
    for name, part in kind.parts.items():
        fields[name] = {"anyOf": [completed_schema(part, schemas), {"type": "null"}]}
    return schema | {"properties": fields} | kind.more_schema


MAX_GUARDS = 100
"""Names of guards in a request."""
GuardNames = Annotated[
    str | list[str] | None, Meta(description=f"Names of configured guards, at most {MAX_GUARDS}.")
]


def guard_names(given: str | list[str] | None) -> tuple[str, ...]:
    """One or several as several; InvalidRequest for more than MAX_GUARDS."""
    several = (given,) if isinstance(given, str) else tuple(given or ())
    if len(several) > MAX_GUARDS:
        raise InvalidRequest(
            f"guard has {len(several):,} names, at most {MAX_GUARDS} may be sent: name each once",
            param="guard",
        )
    return several


CacheField = Annotated[
    bool | Literal["near"] | None,
    Meta(
        description="false: the answer is neither kept nor taken from the response cache; "
        "near: where the server allows it, the answer to a similar question will do."
    ),
]


def cache_use(given: bool | Literal["near"] | None) -> CacheUse:
    """What the response cache may do for a request."""
    return "near" if given == "near" else "off" if given is False else "auto"


class SloBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Milliseconds to the first token, and per token after it; what is absent is the model's. They decide
    what becomes of a request that would be late (`slo_policy`)."""

    ttft_ms: Annotated[float, Meta(ge=1, le=3_600_000)] | None = None
    tpot_ms: Annotated[float, Meta(ge=1, le=60_000)] | None = None


def targets_of(body: SloBody | None) -> Targets | None:
    """The same in seconds."""
    if body is None or (body.ttft_ms is None and body.tpot_ms is None):
        return None
    return Targets(_seconds(body.ttft_ms), _seconds(body.tpot_ms))


class RouteBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is wanted of a route: dollars that are set aside at most, seconds that it takes at most, where it
    may go, and the part of answers that are as good as the large model's."""

    max_usd: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None
    max_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    privacy: Literal["local", "redact"] | None = None
    quality: Annotated[float, Meta(ge=0, lt=1)] | None = None


def wishes_of(body: RouteBody | None) -> RouteWishes | None:
    """The same as the handlers read it."""
    return None if body is None else RouteWishes(**msgspec.structs.asdict(body))


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
