"""JSON Schemas before they are compiled: every keyword is enforced, an annotation, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from headrace.grammar.constraint import GrammarError
from headrace.grammar.schema.document import Document
from headrace.grammar.schema.keywords import MalformedSchema, Schema, Unsupported
from headrace.grammar.schema.rewriting import Rewriter

OPTIONS: Final = {
    # One spelling per key: with \uXXXX a listed property could come again as an additional one.
    "json_allowed_escapes": 'nrbtf\\"',
    # A space, or a line break and its indentation: a model that likes white space must not dwell in it.
    "whitespace_pattern": r"(?: |\n[ \t]{0,40})",
}
"""How llguidance spells JSON."""
CLOSED: Final = (
    "objects that list properties get no others where the schema leaves additionalProperties open: set it, "
    "or send disable_additional_properties: false"
)
_MAX_LISTED: Final = 20


class CompiledSchema(Struct, frozen=True):
    """`text` is llguidance's JSON Schema. `unused` are the names of keywords that do not constrain anything,
    `closed` says whether objects got no other properties than those listed though the schema admits them, and
    `left_open` where that was not possible.
    """

    text: str
    unused: tuple[str, ...] = ()
    closed: bool = False
    left_open: tuple[str, ...] = ()


class SchemaRefused(GrammarError):
    """A schema with a keyword that cannot be enforced."""

    def __init__(self, message: str, *, keyword: str, cause: str, param: str) -> None:
        super().__init__(message, param=param)
        self.keyword, self.cause = keyword, cause


def compile_schema(
    schema: object, *, param: str = "json_schema", disable_additional_properties: bool = False
) -> CompiledSchema:
    """The schema as JSON for `%json` in a lark grammar.

    Beyond JSON Schema: properties come in the order of the schema, formats are enforced, numbers have bounded
    digits, white space is one space or a line break with its indentation. With
    `disable_additional_properties`, objects that list properties have no others, unless the schema has
    `additionalProperties` or `unevaluatedProperties`. Raises GrammarError, SchemaRefused with the keyword.
    """
    try:
        document = Document(schema)
        rewriter = Rewriter(document, closes=disable_additional_properties)
        written = rewriter.whole()
    except Unsupported as error:
        message = f"{param}: {error}"
        raise SchemaRefused(message, keyword=error.keyword, cause=str(error), param=param) from None
    except MalformedSchema as error:
        raise GrammarError(f"{param} {error}", param=param) from None
    if written is False:
        cause = "no value matches the schema"
        raise SchemaRefused(f"{param}: {cause}", keyword="", cause=cause, param=param)
    members: Schema = {} if written is True else written
    text = json.dumps({**members, "x-guidance": OPTIONS}, ensure_ascii=False)
    return CompiledSchema(text, tuple(document.annotations), rewriter.closed, tuple(rewriter.left_open))


def schema_text(
    schema: object, *, param: str = "json_schema", disable_additional_properties: bool = False
) -> str:
    """The text of `compile_schema`."""
    return compile_schema(
        schema, param=param, disable_additional_properties=disable_additional_properties
    ).text


def schema_warnings(schemas: Iterable[CompiledSchema]) -> list[str]:
    """What the author of some schemas should know."""
    found = list(schemas)
    warnings: list[str] = []
    names = list(dict.fromkeys(name for schema in found for name in schema.unused))
    if names:
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        listed = ", ".join(name[:60] for name in names[:_MAX_LISTED])
        warnings.append(f"not part of what is enforced: {listed}{more}")
    if any(schema.closed for schema in found):
        warnings.append(CLOSED)
    places = [place for schema in found for place in schema.left_open]
    if places:
        warnings.append(f"objects at {places[0][:200]} may have properties that are not listed")
    return warnings
