"""Structs as bytes and back, with their types: for keys, which must not forget a field, and for the file.

Every struct stands with its name and all its fields in their order, every container with its kind. So two
values have the same bytes only where they are of the same types and equal; the order of mappings counts, as
it does for templates and schemas. Nothing but the given types is made when bytes are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, cast

import msgspec
from msgspec import Struct

from headrace.errors import HeadraceError

TUPLE, LIST, MAPPING, STRUCT = 0, 1, 2, 3
MAX_DEPTH = 64


class NotEncodable(HeadraceError):
    """A value of a kind that has no bytes here, or bytes that are no such value."""


def encode_value(value: object) -> bytes:
    """The bytes of a value. Raises NotEncodable."""
    try:
        return msgspec.msgpack.encode(_tree(value, MAX_DEPTH))
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise NotEncodable(f"a value cannot be written: {error}") from None


def decode_value(data: bytes, types: Mapping[str, type[Struct]]) -> Any:
    """The value of bytes that `encode_value` has made of structs of these types. Raises NotEncodable."""
    try:
        return _value(msgspec.msgpack.decode(data), types)
    except (msgspec.DecodeError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise NotEncodable(f"no value of the cache: {error}") from None


def _tree(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value.value if isinstance(value, Enum) else value
    if not depth:
        raise NotEncodable("a value is nested too deeply")
    if isinstance(value, Struct):
        fields = [_tree(getattr(value, name), depth - 1) for name in value.__struct_fields__]
        return [STRUCT, type(value).__name__, *fields]
    if isinstance(value, tuple):
        return [TUPLE, *(_tree(one, depth - 1) for one in cast("tuple[object, ...]", value))]
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return [MAPPING, *(_tree(one, depth - 1) for pair in pairs for one in pair)]
    if isinstance(value, Sequence):
        return [LIST, *(_tree(one, depth - 1) for one in cast("Sequence[object]", value))]
    raise NotEncodable(f"a {type(value).__name__} cannot be written")


def _value(tree: Any, types: Mapping[str, type[Struct]]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, *items = cast("list[Any]", tree)
    if kind == STRUCT:
        name, *fields = items
        kind_of = types[name]
        values = [_value(one, types) for one in fields]
        return kind_of(**dict(zip(kind_of.__struct_fields__, values, strict=True)))
    found = [_value(one, types) for one in items]
    if kind == MAPPING:
        return dict(zip(found[::2], found[1::2], strict=True))
    return tuple(found) if kind == TUPLE else found
