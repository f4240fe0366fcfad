"""An endpoint as it is declared on its handler, and all of them, found in the files of the package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from headrace.api.http.body import RequestBody
from headrace.api.http.query import Query

Json = dict[str, Any]
Handle = Callable[..., Awaitable[Response]]


class Content(Struct, frozen=True):
    """A reply in another form than JSON: its media type, the schema of it or of a part, and the bodies of its
    events; with `typed`, all `data` of these is one of them."""

    media_type: str
    schema: Json
    bodies: tuple[type[Struct], ...] = ()
    typed: bool = False


class Endpoint(Struct, eq=False):
    """A decorator of a handler, which gets the request and the parameters of the path by name.

    `methods` are separated by blanks. `body` is what it takes (as JSON, or as text of the media types
    `texts`; or `form`, a schema), `reply` what it answers with (one body or one of several), `content` what
    else. `query` are its parameters and `errors` further statuses. The OpenAPI document leaves out what is
    `hidden`.
    """

    methods: str
    path: str
    body: type[RequestBody] | None = None
    form: Json | None = None
    texts: tuple[str, ...] = ()
    reply: type[Struct] | tuple[type[Struct], ...] = ()
    content: tuple[Content, ...] = ()
    query: type[Query] | None = None
    errors: Mapping[int, str] = {}
    hidden: bool = False
    handle: Handle | None = None

    def __call__(self, handle: Handle) -> Endpoint:
        """The endpoint of that handler."""
        self.handle = handle
        return self

    @property
    def replies(self) -> tuple[type[Struct], ...]:
        """The bodies that it may answer with."""
        return self.reply if isinstance(self.reply, tuple) else (self.reply,)

    def route(self) -> Route:
        """What calls the handler. HEAD is answered only where it is declared."""
        handle = self.handle
        assert handle is not None, self.path

        async def called(http: HttpRequest) -> Response:
            return await handle(http, **http.path_params)

        route = Route(self.path, called)
        route.methods = set(self.methods.split())
        return route


def find_endpoints(package: ModuleType) -> tuple[Endpoint, ...]:
    """The endpoints in all files of a package, by path: what is literal comes before a parameter."""
    found: list[Endpoint] = []
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(info.name)
        values = [value for value in vars(module).values() if isinstance(value, Endpoint)]
        found += [one for one in values if one.handle is not None and one.handle.__module__ == info.name]
    return tuple(sorted(found, key=lambda one: (one.path, one.methods)))
