"""What takes the place of personal data: placeholders, masks, hashes."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Final, Literal, get_args

from msgspec import Struct, ValidationError, convert

from headrace.errors import InvalidRequest

DEFAULT: Final = "DEFAULT"
LITERAL: Final = "TEXT"
"""The entity of what already looks like a placeholder, so that no text is restored as another."""

PLACEHOLDER: Final = re.compile(r"<[A-Z][A-Z0-9_]{0,63}_[0-9]{1,9}>")
_MAX_NUMBER, _MAX_STEM = 999_999_999, 64
_NOT_IN_STEM: Final = re.compile(r"[^A-Z0-9_]")
MAX_PLACEHOLDER: Final = 76
"""Characters of the longest placeholder, at least."""

MAX_NEW_VALUE: Final = 256
"""Characters that take the place of an entity, of which a text can have hundreds of thousands."""


OperatorType = Literal["replace", "redact", "mask", "hash", "keep"]
_TYPES: Final = get_args(OperatorType)


class Operator(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an entity is replaced.

    "replace": by `new_value`, without it by a placeholder like <EMAIL_ADDRESS_1>, the same for equal texts.
    "redact": by nothing. "mask": `chars_to_mask` characters (None: all), from the end with `from_end`, become
    `masking_char`. "hash": by the hexadecimal HMAC with `key` (None: one that is drawn for the request), of
    `hash_type`. "keep": by itself.
    """

    type: OperatorType = "replace"
    new_value: str | None = None
    masking_char: str = "*"
    chars_to_mask: int | None = None
    from_end: bool = False
    hash_type: Literal["sha256", "sha512"] = "sha256"
    key: str | None = None

    @property
    def has_placeholders(self) -> bool:
        """Whether what it writes can be put back."""
        return self.type == "replace" and self.new_value is None


OperatorLike = Operator | str | Mapping[str, object]


def read_operator(value: object, param: str = "operators") -> Operator:
    """An operator from its name or its fields; InvalidRequest for anything else."""
    if isinstance(value, Operator):
        operator = value
    else:
        fields: object = {"type": value} if isinstance(value, str) else value
        if isinstance(fields, Mapping) and "encrypt" in (fields.get("type"), value):  # pyright: ignore[reportUnknownMemberType]
            raise InvalidRequest(
                "the operator encrypt is not offered, as no library for it is installed with headrace: use"
                " replace, whose vault puts texts back, or hash",
                param=param,
            )
        if isinstance(value, str) and value not in _TYPES:
            raise InvalidRequest(
                f"the operator {value[:80]!r} is none of {', '.join(_TYPES)}",
                param=param,
                code="invalid_value",
            )
        try:
            operator = convert(fields, Operator)
        except ValidationError as error:
            raise InvalidRequest(f"an operator cannot be read: {error}", param=param) from None
    length = len(operator.new_value or "")
    if length > MAX_NEW_VALUE:
        raise InvalidRequest(
            f"new_value has {length:,} characters, at most {MAX_NEW_VALUE} can take the place of an entity",
            param=param,
        )
    if len(operator.masking_char) != 1:
        raise InvalidRequest("masking_char must be one character", param=param)
    if operator.chars_to_mask is not None and operator.chars_to_mask < 0:
        raise InvalidRequest(f"chars_to_mask is {operator.chars_to_mask}, it must be 0 or more", param=param)
    return operator


class Vault:
    """Placeholders of one request or conversation, and what they stand for."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self.values: dict[str, str] = dict(values or {})
        self._placeholders: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        for one in self.values:
            if len(one) > MAX_NEW_VALUE:
                raise InvalidRequest(
                    f"vault has a placeholder of {len(one):,} characters, at most {MAX_NEW_VALUE} can take"
                    " the place of an entity",
                    param="vault",
                )
            if PLACEHOLDER.fullmatch(one):  # nothing else is put back: it is not used again
                stem, _, number = one[1:-1].rpartition("_")
                self._placeholders[stem, self.values[one]] = one
                self._counts[stem] = max(self._counts.get(stem, 0), int(number))
        self._key = secrets.token_bytes(32)

    def placeholder(self, label: str, text: str) -> str:
        """The placeholder of a text, always the same, and one that `restore_text` finds."""
        stem = _stem(label)
        known = self._placeholders.get((stem, text))
        if known is None:
            known = self._placeholders[stem, text] = self._unused(stem)
            self.values[known] = text
        return known

    def _unused(self, stem: str) -> str:
        while True:
            self._counts[stem] = number = self._counts.get(stem, 0) % _MAX_NUMBER + 1
            if (found := f"<{stem}_{number}>") not in self.values:
                return found

    def replacement(self, operator: Operator, label: str, text: str) -> str:
        """What an operator makes of the text of an entity."""
        match operator.type:
            case "redact":
                return ""
            case "keep":
                return text
            case "mask":
                return _masked(operator, text)
            case "hash":
                key = self._key if operator.key is None else operator.key.encode()
                return hmac.new(key, text.encode("utf-8", "surrogatepass"), operator.hash_type).hexdigest()
            case _:
                return self.placeholder(label, text) if operator.new_value is None else operator.new_value


def _stem(label: str) -> str:
    """A label as placeholders have it: those of custom recognizers and of models may be any text."""
    if _NOT_IN_STEM.search(label) is None and label[:1].isalpha() and len(label) <= _MAX_STEM:
        return label
    stem = _NOT_IN_STEM.sub("_", label.upper())
    return (stem if stem[:1].isalpha() else f"ENTITY_{stem}")[:_MAX_STEM]


def _masked(operator: Operator, text: str) -> str:
    count = len(text) if operator.chars_to_mask is None else min(operator.chars_to_mask, len(text))
    mask = operator.masking_char * count
    return text[: len(text) - count] + mask if operator.from_end else mask + text[count:]


def restore_text(text: str, values: Mapping[str, str]) -> str:
    """The text with every placeholder of `values` replaced by what it stands for."""
    return PLACEHOLDER.sub(lambda found: values.get(found[0], found[0]), text)
