"""multipart/form-data (RFC 7578): the fields and files of an upload that has arrived whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from msgspec import Struct

from headrace.errors import InvalidRequest

MAX_FIELDS = 32
MAX_HEADER_BYTES = 8192
_DISPOSITION = re.compile(
    r"^content-disposition[ \t]*:[ \t]*form-data[ \t]*(;.*)", re.IGNORECASE | re.MULTILINE
)
_PARAMETER = re.compile(r';[ \t]*([a-z*]+)=(?:"((?:[^"\\]|\\.)*)"|([^;" \t\r]*))')
_QUOTED_PAIR = re.compile(r'\\(["\\])')
_ESCAPES = {"%22": '"', "%0D": "\r", "%0A": "\n"}  # as browsers write them in names (WHATWG, form submission)


class FormField(Struct, frozen=True):
    """One field; `filename` is None where it is no file."""

    name: str
    filename: str | None
    content: bytes


def parse_form(content_type: str, body: bytes) -> dict[str, FormField]:
    """The fields of a form by their names; InvalidRequest where it is none, or has a field twice."""
    kind, _, more = content_type.partition(";")
    boundary = dict(_parameters(";" + more)).get("boundary")
    if kind.strip().lower() != "multipart/form-data" or not boundary:
        raise InvalidRequest(
            "the body is not a form: send it as multipart/form-data with a boundary", code="invalid_form"
        )
    # The first boundary has no line break before it; given one, all are alike.
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", "replace"), MAX_FIELDS + 2)
    if len(parts) > MAX_FIELDS + 2:
        raise InvalidRequest(f"the form has more than {MAX_FIELDS} fields", code="invalid_form")
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise InvalidRequest("the form is cut short: its last boundary is missing", code="invalid_form")
    fields: dict[str, FormField] = {}
    for part in parts[1:-1]:
        field = _field(part)
        if field.name in fields:
            raise InvalidRequest(f"the form has the field {field.name[:80]!r} twice", code="invalid_form")
        fields[field.name] = field
    return fields


def _field(part: bytes) -> FormField:
    """A field from its headers and content, as they stand after a boundary."""
    head, blank, content = part.partition(b"\r\n\r\n")
    found = _DISPOSITION.search(head[:MAX_HEADER_BYTES].decode("utf-8", "replace"))
    names = dict(_parameters(found[1])) if found else {}
    if not blank or "name" not in names:
        raise InvalidRequest(
            'the form has a part without Content-Disposition: form-data; name="…"', code="invalid_form"
        )
    return FormField(names["name"], names.get("filename"), content)


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    """Names and values after a header's first word, as RFC 7578, browsers and older clients write them."""
    for name, quoted, bare in _PARAMETER.findall(text):
        value = _QUOTED_PAIR.sub(r"\1", quoted) or bare
        if name == "filename*":  # RFC 5987: an encoding, a language, then the name in percent signs
            name, value = "filename", unquote(value.rpartition("'")[2], errors="replace")
        for written, character in _ESCAPES.items():
            value = value.replace(written, character)
        yield name, value
