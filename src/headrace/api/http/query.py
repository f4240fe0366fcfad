"""Query parameters as structs, checked and described as bodies are."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest

from headrace.api.http.body import converted

Q = TypeVar("Q", bound="Query")


class Query(Struct, kw_only=True, frozen=True):
    """Query parameters, each with a default; others are ignored unless the class forbids unknown fields.

    Those in `lists` may be given several times, also under a name with `[]`.
    """

    lists: ClassVar[tuple[str, ...]] = ()


def page_size(most: int) -> Meta:
    """The bounds of `limit`."""
    return Meta(ge=1, le=most, description="Entries to return.")


def read_query(kind: type[Q], http: HttpRequest) -> Q:
    """The query parameters of `http`; InvalidRequest names the first bad one."""
    given: dict[str, Any] = {}
    for key, value in http.query_params.multi_items():
        name = key.removesuffix("[]")
        if name in kind.lists:
            given.setdefault(name, []).append(value)
        else:
            given[key] = value
    return converted(kind, given, strict=False)


def query_parameters(kind: type[Query]) -> list[dict[str, Any]]:
    """The parameters in the OpenAPI document."""
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    found: list[dict[str, Any]] = []
    for name, entry in schema["properties"].items():
        # Only text can be given: null is the default where there is no other.
        field = next((one for one in entry.get("anyOf", ()) if one != {"type": "null"}), entry)
        described = {key: value for key, value in field.items() if key == "description"}
        place = f"{name}[]" if name in kind.lists else name
        found.append({"name": place, "in": "query", "required": False, "schema": field, **described})
    return found
