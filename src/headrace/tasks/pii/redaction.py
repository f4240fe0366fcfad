"""Replace personal data in texts, and put it back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import overload

from msgspec import Struct

from headrace.config.names import nearest
from headrace.errors import InvalidRequest
from headrace.tasks.entities import Entity
from headrace.tasks.pii.analyzer import THRESHOLD, Analyzer, as_entities
from headrace.tasks.pii.custom import CustomRecognizer
from headrace.tasks.pii.operators import (
    DEFAULT,
    LITERAL,
    PLACEHOLDER,
    Operator,
    OperatorLike,
    Vault,
    read_operator,
    restore_text,
)
from headrace.tasks.pii.recognizer import RecognizerResult
from headrace.tasks.pii.spans import resolved

Operators = Mapping[str, OperatorLike]


class Redacted(Struct, frozen=True):
    """A text without its `entities`, whose offsets are code points of the original text.

    `vault` has what placeholders stand for, in all texts of the call.
    """

    text: str
    entities: list[Entity]
    vault: dict[str, str]


class Redactor:
    """Replaces the findings of an analyzer. `operators` are by entity, "DEFAULT" for the others."""

    def __init__(
        self, analyzer: Analyzer, operators: Operators | None = None, vault: Mapping[str, str] | None = None
    ) -> None:
        self.analyzer, self.vault = analyzer, Vault(vault)
        self._operators = {name: read_operator(one) for name, one in (operators or {}).items()}
        if not analyzer.with_model:
            _check_operators(self._operators, analyzer)
        self._default = self._operators.get(DEFAULT, Operator())
        self._has_placeholders = any(
            one.has_placeholders for one in (self._default, *self._operators.values())
        )

    def redact(self, text: str, more: Sequence[RecognizerResult] = ()) -> Redacted:
        """The text without what the analyzer finds, and without `more` that a model has found."""
        replaced, entities = self.replace(text, resolved(text, [*self.analyzer.find(text), *more]))
        return Redacted(replaced, entities, self.vault.values)

    def replace(self, text: str, findings: Sequence[RecognizerResult]) -> tuple[str, list[Entity]]:
        """The text with findings, in order and without overlaps, replaced; and these as entities."""
        parts: list[str] = []
        done = 0
        for one in findings:
            operator = self._operators.get(one.label, self._default)
            parts.append(self._literal(text[done : one.start]))
            parts.append(self.vault.replacement(operator, one.label, text[one.start : one.end]))
            done = one.end
        parts.append(self._literal(text[done:]))
        return "".join(parts), as_entities(text, findings)

    def _literal(self, text: str) -> str:
        """Text between entities. What looks like a placeholder becomes one itself."""
        if not self._has_placeholders or "<" not in text:
            return text
        return PLACEHOLDER.sub(lambda found: self.vault.placeholder(LITERAL, found[0]), text)


def _check_operators(operators: Collection[str], analyzer: Analyzer) -> None:
    """InvalidRequest for an operator of an entity that nothing finds, which would have no effect."""
    for name in operators:
        if name != DEFAULT and name not in analyzer.known:
            raise InvalidRequest(
                f"operators names the unknown entity {name[:80]!r}{nearest(name[:80], analyzer.known)}",
                param="operators",
            )


@overload
def redact(
    texts: str,
    *,
    entities: Collection[str] | None = None,
    operators: Operators | None = None,
    threshold: float = THRESHOLD,
    allow_list: Collection[str] = (),
    recognizers: Sequence[CustomRecognizer] = (),
    vault: Mapping[str, str] | None = None,
) -> Redacted: ...
@overload
def redact(
    texts: list[str] | tuple[str, ...],
    *,
    entities: Collection[str] | None = None,
    operators: Operators | None = None,
    threshold: float = THRESHOLD,
    allow_list: Collection[str] = (),
    recognizers: Sequence[CustomRecognizer] = (),
    vault: Mapping[str, str] | None = None,
) -> list[Redacted]: ...
def redact(
    texts: str | Sequence[str],
    *,
    entities: Collection[str] | None = None,
    operators: Operators | None = None,
    threshold: float = THRESHOLD,
    allow_list: Collection[str] = (),
    recognizers: Sequence[CustomRecognizer] = (),
    vault: Mapping[str, str] | None = None,
) -> Redacted | list[Redacted]:
    """Texts without personal data, found by patterns with checksums, without a model.

    `entities` names what is looked for (None: all); what scores below `threshold` stays. `operators` maps
    entities (or "DEFAULT") to "replace", "redact", "mask", "hash", "keep" or an `Operator`. By default equal
    texts become equal placeholders such as <EMAIL_ADDRESS_1>, which `restore` puts back by the vault; `vault`
    continues that of an earlier call. Raises InvalidRequest.
    """
    analyzer = Analyzer(entities, threshold=threshold, allow=allow_list, custom=recognizers)
    redactor = Redactor(analyzer, operators, vault)
    return redactor.redact(texts) if isinstance(texts, str) else [redactor.redact(text) for text in texts]


def restore(text: str, vault: Mapping[str, str]) -> str:
    """The text with the placeholders of a vault replaced by what they stand for; others stay."""
    return restore_text(text, vault)
