"""A JSON Schema as llguidance's, with nothing in it that would not be enforced, and what there is to say of it."""

from __future__ import annotations

import json
from typing import Final

from msgspec import Struct

from headrace.grammar.constraint import GrammarError
from headrace.grammar.schema.document import Document
from headrace.grammar.schema.keywords import Unsupported
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
    """`text` is llguidance's JSON Schema; `warnings` say what has no effect, or another one than usual."""

    text: str
    warnings: tuple[str, ...] = ()


def compile_schema(
    schema: object, *, param: str = "json_schema", disable_additional_properties: bool = False
) -> CompiledSchema:
    """The schema as JSON for `%json` in a lark grammar.

    Beyond JSON Schema: properties come in the order of the schema, formats are enforced, numbers have bounded
    digits, white space is one space or a line break with its indentation. With
    `disable_additional_properties`, objects that list properties have no others, unless the schema has
    `additionalProperties` or `unevaluatedProperties`. Raises GrammarError that names the keyword and its place.
    """
    try:
        document = Document(schema)
        rewriter = Rewriter(document, closes=disable_additional_properties)
        written = rewriter.whole()
    except Unsupported as error:
        raise SchemaRefused(f"{param}: {error}", error.keyword, param=param) from None
    except TypeError as error:
        raise GrammarError(f"{param} {error}", param=param) from None
    if isinstance(written, bool):
        written = {} if written else {"enum": []}
    warnings: list[str] = []
    if document.annotations:
        names = list(document.annotations)
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        listed = ", ".join(name[:60] for name in names[:_MAX_LISTED])
        warnings.append(f"the schema's {listed}{more} do not constrain the output")
    if rewriter.closed:
        warnings.append(CLOSED)
    text = json.dumps({**written, "x-guidance": OPTIONS}, ensure_ascii=False)
    return CompiledSchema(text, tuple(warnings))


def schema_text(
    schema: object, *, param: str = "json_schema", disable_additional_properties: bool = False
) -> str:
    """The text of `compile_schema`."""
    return compile_schema(
        schema, param=param, disable_additional_properties=disable_additional_properties
    ).text


class SchemaRefused(GrammarError):
    """A schema with a keyword that cannot be enforced."""

    def __init__(self, message: str, keyword: str, *, param: str) -> None:
        super().__init__(message, param=param)
        self.keyword = keyword
