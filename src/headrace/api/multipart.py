"""multipart/form-data (RFC 7578): the fields and files of an upload that has arrived whole."""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message

from headrace.errors import InvalidRequest

MAX_FIELDS = 32
MAX_HEADER_BYTES = 8192
_ESCAPES = {"%22": '"', "%0D": "\r", "%0A": "\n"}  # as browsers write them in names (WHATWG, form submission)


@dataclass(frozen=True, slots=True)
class FormField:
    """One field; `filename` is None where it is no file."""

    name: str
    filename: str | None
    content: bytes


def parse_form(content_type: str, body: bytes) -> dict[str, FormField]:
    """The fields of a form by their names; InvalidRequest where it is none, or has a field twice."""
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if header.get_content_type() != "multipart/form-data" or not boundary:
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
    header = Message()
    for line in head[:MAX_HEADER_BYTES].decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon and name.strip().lower() == "content-disposition":
            header["content-disposition"] = value.strip()
    name = header.get_param("name", header="content-disposition")
    if not blank or not isinstance(name, str) or header.get_content_disposition() != "form-data":
        raise InvalidRequest(
            'the form has a part without Content-Disposition: form-data; name="…"', code="invalid_form"
        )
    filename = header.get_filename()
    for written, character in _ESCAPES.items():
        filename = None if filename is None else filename.replace(written, character)
    return FormField(name, filename, content)
