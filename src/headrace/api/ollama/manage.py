"""Names of users for models: /api/create, /api/copy, /api/delete; and what cannot be pushed."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

from msgspec import Meta, field
from msgspec.structs import replace
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, Values, checked, loose, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.ollama.bodies import ModelBody, Name
from headrace.api.ollama.catalog import find_entry, model_paths
from headrace.api.ollama.model_names import TAG
from headrace.api.ollama.options import Options
from headrace.api.ollama.reply import MEDIA_TYPE, line_of, lines_of
from headrace.api.ollama.schema import OllamaStatus
from headrace.api.service import Service, get_service
from headrace.errors import InvalidRequest
from headrace.inference.accounts import Account, ScopeMissing
from headrace.storage.aliases import Alias, Aliases
from headrace.weights.hub.resolver import remove

MAX_SYSTEM_CHARACTERS = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
NEW_NAME = Meta(extra_json_schema={"pattern": f"^{_NAME.pattern}(:latest)?$"})
LICENSE = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
NOT_MADE_HERE = ("quantize", "quantization", "template", "modelfile", "path", "files", "adapters", "messages")


class CreateBody(ModelBody, kw_only=True):
    """The body of /api/create."""

    parts: ClassVar[Mapping[str, type[RequestBody]]] = {"parameters": Options}
    unsupported: ClassVar[Mapping[str, Values]] = dict.fromkeys(NOT_MADE_HERE, ("", {}, []))
    unsupported_text: ClassVar[str] = (
        "{name} is not supported: a creation names a model (from) and gives it a system prompt, parameters "
        "and a license; `headrace quantize` makes new weights"
    )
    model: Annotated[Name, NEW_NAME]
    from_: Name = field(name="from")
    system: Annotated[str, Meta(max_length=MAX_SYSTEM_CHARACTERS)] | None = None
    parameters: dict[str, Any] | None = None
    license: Annotated[Any, loose(LICENSE)] = None
    stream: bool | None = None


class AliasNotOwned(ScopeMissing):
    """The alias belongs to another key."""

    remedy = "Choose another name, or use the key that made the alias or one with the scope `admin`."
    code = "alias_not_owned"


class CopyBody(RequestBody, kw_only=True):
    """The body of /api/copy."""

    source: Name
    destination: Annotated[Name, NEW_NAME]


class PushBody(ModelBody):
    """The body of /api/push."""

    unsupported: ClassVar[Mapping[str, Values]] = {"insecure": (False,)}
    stream: bool | None = None


@Endpoint("POST", "/api/create", body=CreateBody, reply=OllamaStatus, content=lines_of(OllamaStatus))
async def create(http: HttpRequest) -> Response:
    """Give a model a second name, with a system prompt and parameters of its own. Kept in the store."""
    service, account = get_service(http), call_of(http).account
    body = await read_checked(CreateBody, http)
    given = {key: value for key, value in (body.parameters or {}).items() if value is not None}
    checked(Options, given)
    words = _license(body.license)

    def keep() -> None:
        target = find_entry(service, body.from_)
        base = target.alias or Alias(name="", target=target.name, created_s=0)
        system = base.system if body.system is None else body.system
        parameters = {**base.parameters, **given}
        _put(
            service,
            body.model,
            replace(base, system=system, parameters=parameters, license=words or base.license),
            account,
        )

    await service.run_in_thread(keep)
    status = OllamaStatus("success")
    if body.stream is False:
        return json_response(status)
    return Response(line_of(status), media_type=MEDIA_TYPE)


@Endpoint("POST", "/api/copy", body=CopyBody, reply=OllamaStatus)
async def copy(http: HttpRequest) -> Response:
    """Give a model or an alias a second name. Kept in the store; no weights are copied."""
    service, account = get_service(http), call_of(http).account
    body = await read_checked(CopyBody, http)

    def keep() -> None:
        source = find_entry(service, body.source)
        alias = source.alias or Alias(name="", target=source.name, created_s=0)
        _put(service, body.destination, alias, account)

    await service.run_in_thread(keep)
    return json_response(OllamaStatus("success"))


@Endpoint("DELETE", "/api/delete", body=ModelBody, reply=OllamaStatus)
async def delete(http: HttpRequest) -> Response:
    """Forget an alias, or delete a model of the hub from its cache. Nothing else is ever deleted."""
    service, account = get_service(http), call_of(http).account
    body = await read_checked(ModelBody, http)

    def forget() -> None:
        entry = find_entry(service, body.model)
        if entry.alias is not None:
            _check_owner(entry.alias, account)
            Aliases(service.database).remove(entry.name)
            service.read_aliases()
            return
        account.require("admin")
        if entry.name in {entry.name for entry in service.models.entries}:
            raise InvalidRequest(f"{entry.name} is being served: stop the server first", param="model")
        remove(entry.name)

    await service.run_in_thread(forget)
    return json_response(OllamaStatus("success"))


@Endpoint("POST", "/api/push", body=PushBody, hidden=True)
async def push(http: HttpRequest) -> Response:
    """Refused: this server publishes nothing."""
    await read_checked(PushBody, http)
    raise InvalidRequest(
        "push is not supported: this server publishes nothing, use the hub's own client",
        code="unsupported_parameter",
    )


def _put(service: Service, name: str, alias: Alias, account: Account) -> None:
    """Keep the alias as one of the account's under that name, unless it is a model's or another account's."""
    name = name.removesuffix(TAG)
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name[:80]!r} is no name: up to 128 of the characters a-z A-Z 0-9 . _ : / -", param="model"
        )
    if name in model_paths(service):
        raise InvalidRequest(f"{name} is the name of a model: choose another", param="model")
    aliases = Aliases(service.database)
    with service.database.transaction():
        before = aliases.find(name)
        if before is not None:
            _check_owner(before, account)
        aliases.put(replace(alias, name=name, created_s=int(time.time()), owner=account.owner()))
    service.read_aliases()


def _check_owner(alias: Alias, account: Account) -> None:
    if alias.owner != account.owner() and not account.may("admin"):
        raise AliasNotOwned(
            f"the alias {alias.name} was made by another key: choose another name, or use its key or one "
            "with the scope 'admin'",
            param="model",
        )


def _license(value: object) -> str | None:
    texts = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("license is neither a text nor a list of texts", param="license")
    return "\n\n".join(cast("list[str]", texts)) or None
