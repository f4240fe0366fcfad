"""What the bodies of Ollama's requests share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, cast

from msgspec import Meta

from headrace.api.http.body import (
    CacheField,
    GuardNames,
    RequestBody,
    RouteBody,
    SloBody,
    Values,
    checked,
    loose,
)
from headrace.api.ollama.options import Options
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint, schema_constraint
from headrace.inference.events import ParameterWarning
from headrace.sampling.params import MAX_TOP_LOGPROBS

FORMAT_SCHEMA: Final = {"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]}
_UNIT_S: Final[Mapping[str, float]] = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_PIECE = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
DURATION: Final = {
    "pattern": r"^[+-]?([0-9]{1,11}|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$",
    "maxLength": 64,
}


Name = Annotated[str, Meta(min_length=1, max_length=256)]


class ModelBody(RequestBody, kw_only=True):
    """A body that names a model."""

    model: Name


class UsingBody(ModelBody):
    """A body that has a model computing, and says how long it is to stay in memory after that."""

    keep_alive: float | Annotated[str, Meta(extra_json_schema=DURATION)] | None = None

    @property
    def keep_alive_s(self) -> float | None:
        """How long the model is to stay in memory after the reply; negative: for ever; None: as set up."""
        return None if self.keep_alive is None else duration_s(self.keep_alive)


class AnswerBody(UsingBody):
    """The fields that both generating endpoints take."""

    parts: ClassVar[Mapping[str, type[RequestBody]]] = {"options": Options}
    no_effect: ClassVar[Mapping[str, Values]] = {"truncate": (False,), "shift": (False,)}
    stream: bool | None = None
    options: dict[str, Any] | None = None
    format: Annotated[Any, loose(FORMAT_SCHEMA)] = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    slo: SloBody | None = None
    route: RouteBody | None = None
    guard: GuardNames = None
    cache: CacheField = None

    @property
    def asks_nothing(self) -> bool:
        """Whether nothing is to be computed, only the model to be loaded or unloaded."""
        raise NotImplementedError

    @property
    def unloads(self) -> bool:
        """Whether all that is asked for is to free the model's memory."""
        return self.asks_nothing and self.keep_alive_s == 0

    @property
    def streams(self) -> bool:
        """Whether the reply is a stream: yes, unless told otherwise."""
        return self.stream is not False

    def read_options(self, defaults: Mapping[str, Any]) -> tuple[Options, list[ParameterWarning]]:
        """The options of the request over an alias's `defaults`, and their warnings."""
        return checked(Options, {**defaults, **(self.options or {})})

    @property
    def logprob_count(self) -> int | None:
        """As SamplingParams.logprobs."""
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def constraint(self) -> Constraint | None:
        """What the answer must match."""
        wanted: object = self.format
        if wanted is None or wanted == "":
            return None
        if wanted == "json":
            return Constraint("json_object", param="format")
        if not isinstance(wanted, dict):
            raise InvalidRequest('format is neither "json" nor a JSON Schema', param="format")
        return schema_constraint(cast("dict[str, Any]", wanted), param="format")


def duration_s(value: float | str) -> float:
    """Seconds, or a text such as 5m, 1h30m, -1s; InvalidRequest for anything else."""
    if isinstance(value, float | int):
        return float(value)
    sign, digits = (-1.0, value[1:]) if value.startswith("-") else (1.0, value.removeprefix("+"))
    if digits.isascii() and digits.isdecimal() and len(digits) < 12:
        return sign * float(digits)
    pieces = _PIECE.findall(digits)
    if not pieces or len(value) > 64 or "".join(number + unit for number, unit in pieces) != digits:
        raise InvalidRequest(
            f"keep_alive is {value[:40]!r}, it must be seconds or a duration such as 5m", param="keep_alive"
        )
    return sign * sum(float(number) * _UNIT_S[unit] for number, unit in pieces)
