"""JSON from untrusted files: bounded, typed while it is read, and without duplicate keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.errors import CorruptFile
from headrace.json_text import STRING, has_key_twice, key_count, key_twice

T = TypeVar("T")

# Infinity is no JSON, but Python writes it into config.json; transformers 5 spells it as this object.
_STRING_OR_INFINITY = re.compile(rb"(%s)|\bInfinity\b" % STRING.pattern, re.DOTALL)
_INFINITY = b'{"__float__":"Infinity"}'


def decode(decoder: msgspec.json.Decoder[T], raw: bytes | msgspec.Raw, where: str) -> T:
    """`raw` as the decoder's type, or CorruptFile that begins with `where`.

    Types are checked while reading, so a hostile document costs no more memory than an honest one of
    its size. Of two equal keys the last one counts: see `refuse_duplicates`.
    """
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(f"{where} is not the JSON it should be: {error}; fetch the file again") from None


def refuse_duplicates(raw: bytes, keys: int, where: str) -> None:
    """Raises CorruptFile if the valid JSON `raw` has more than the `keys` keys that its reader got."""
    if key_count(raw) != keys:
        raise _twice(raw, where)


def read_object(path: Path, limit_bytes: int) -> dict[str, object]:
    """The JSON object in `path`, which may have `limit_bytes`. Raises CorruptFile, OSError.

    A bare `Infinity` is read as {"__float__": "Infinity"}.
    """
    if not path.is_file():  # a named pipe would hang the open
        raise FileNotFoundError(path)
    with path.open("rb") as file:
        raw = file.read(limit_bytes + 1)
    if len(raw) > limit_bytes:
        raise CorruptFile(f"{path.name} has more than {limit_bytes:,} bytes, the limit for such a file")
    if b"Infinity" in raw:
        raw = _STRING_OR_INFINITY.sub(lambda found: found[1] or _INFINITY, raw)
    value = decode(_OBJECT, raw, path.name)
    if has_key_twice(raw, value):
        raise _twice(raw, path.name)
    return value


_OBJECT = msgspec.json.Decoder(dict[str, object])


def _twice(raw: bytes, where: str) -> CorruptFile:
    return CorruptFile(
        f"{where} has the key {key_twice(raw)[:200]!r} twice in one object; fetch the file again"
    )
