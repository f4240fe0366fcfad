"""multipart/form-data (RFC 7578): the fields and files of an upload that has arrived whole."""

from __future__ import annotations

from msgspec import Struct
from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, parse_options_header

from headrace.errors import InvalidRequest

MAX_FIELDS = 32
_ESCAPES = {"%22": '"', "%0D": "\r", "%0A": "\n"}  # as browsers write them in names (WHATWG, form submission)
_IN_MEMORY = {"MAX_MEMORY_FILE_SIZE": float("inf")}  # the body that it is a part of is bounded


class FormField(Struct, frozen=True):
    """One field; `filename` is None where it is no file."""

    name: str
    filename: str | None
    content: bytes


def parse_form(content_type: str, body: bytes) -> dict[str, FormField]:
    """The fields of a form by their names; InvalidRequest where it is none, or has a field twice."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise _invalid("the body is not a form: send it as multipart/form-data with a boundary")
    fields: dict[str, FormField] = {}
    ends: list[bool] = []

    def add(part: Field | File) -> None:
        field = _field(part)
        if field.name in fields:
            raise _invalid(f"the form has the field {field.name[:80]!r} twice")
        if len(fields) == MAX_FIELDS:
            raise _invalid(f"the form has more than {MAX_FIELDS} fields")
        fields[field.name] = field

    try:
        parser = FormParser(kind.decode(), add, add, lambda: ends.append(True), boundary, config=_IN_MEMORY)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise _invalid(f"the form cannot be read: {str(error)[:200]}: send it as RFC 7578 says") from None
    if not ends:
        raise _invalid("the form is cut short: its last boundary is missing")
    return fields


def _field(part: Field | File) -> FormField:
    name = _text(part.field_name or b"")
    if isinstance(part, Field):
        return FormField(name, None, part.value or b"")
    part.file_object.seek(0)
    return FormField(name, _text(part.file_name or b""), part.file_object.read())


def _text(name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    for written, character in _ESCAPES.items():
        text = text.replace(written, character)
    return text


def _invalid(cause: str) -> InvalidRequest:
    return InvalidRequest(cause, code="invalid_form")
