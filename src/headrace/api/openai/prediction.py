"""`prediction` of chat completions: text that the client expects in the answer, as OpenAI has it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class PredictedPart(Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a prediction's text."""

    type: Literal["text"]
    text: str


class Prediction(Struct, frozen=True, forbid_unknown_fields=True):
    """`prediction`: what the client thinks the answer will mostly be, which then comes faster."""

    type: Literal["content"]
    content: str | list[PredictedPart]

    @property
    def text(self) -> str:
        """All of it."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)
