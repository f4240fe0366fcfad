"""`prediction` of chat completions: text that the client expects in the answer, as OpenAI has it."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

_PART: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "additionalProperties": False,
}
PREDICTION: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "content"],
    "properties": {
        "type": {"const": "content"},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]},
    },
    "additionalProperties": False,
}


class PredictedPart(BaseModel):
    """One part of a prediction's text."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: str


class Prediction(BaseModel):
    """`prediction`: what the client thinks the answer will mostly be, which then comes faster."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["content"]
    content: str | list[PredictedPart]

    @property
    def text(self) -> str:
        """All of it."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)
