"""Fields of bodies that are sampling parameters, made from their table: types, bounds, help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct

from headrace.api.http.body import TokenId
from headrace.errors import InvalidRequest
from headrace.sampling.parameters import Kind, Parameter
from headrace.sampling.params import PARAMETERS

Field = tuple[str, Any, None]

_Text = Annotated[str, Meta(extra_json_schema={"minLength": 1})]
_TYPES: Mapping[Kind, Any] = {
    "integer": int,
    "number": float,
    "switch": bool,
    "texts": list[_Text],
    "ids": list[TokenId],
    "switch or never": bool | Literal["never"],
}
_TOKEN = "^[0-9]{1,10}$"  # a key of `logit_bias`


def sampling_fields(names: Mapping[str, str]) -> list[Field]:
    """Fields for the parameters whose names in the table are the values of `names`; None: not given."""
    return [(name, described(parameter) | None, None) for name, parameter in names.items()]


def described(name: str) -> Any:
    """The type of a parameter in a body. Bounds are for the document: `Parameter.check` holds them."""
    row = PARAMETERS[name]
    if row.kind == "biases":
        bias = Annotated[float, Meta(extra_json_schema=_range(row))]
        keys = {"propertyNames": {"pattern": _TOKEN}}
        return Annotated[
            dict[str, bias], Meta(max_length=row.most, description=row.help, extra_json_schema=keys)
        ]
    found = Annotated[_TYPES[row.kind], bounds(name)]
    return cast("Any", _Text) | found if name == "stop" else found  # one text stands for a list of it


def bounds(name: str) -> Meta:
    """The help and the bounds of a parameter for the document."""
    row = PARAMETERS[name]
    return Meta(description=row.help, extra_json_schema=_bounds(row))


def _bounds(row: Parameter) -> dict[str, Any]:
    if not row.is_list:
        return _range(row)
    return {"maxItems": row.most} | ({"minItems": 1} if row.optional else {})


def _range(row: Parameter) -> dict[str, Any]:
    least = "exclusiveMinimum" if row.above_low else "minimum"
    return {} if row.low is None else {least: row.low, "maximum": row.high}


def given_sampling(body: Struct, names: Mapping[str, str]) -> dict[str, Any]:
    """The parameters that a body gives, by their names in the table, which are the values of `names`."""
    given: dict[str, Any] = {}
    for name, parameter in names.items():
        value = getattr(body, name)
        if value is not None:
            given[parameter] = _read(name, value, PARAMETERS[parameter])
    return given


def _read(name: str, value: Any, row: Parameter) -> Any:
    if row.is_list:
        return (value,) if isinstance(value, str) else tuple(cast("Iterable[object]", value))
    if row.kind == "biases":
        return {_token_id(name, key): bias for key, bias in value.items()}
    return value


def _token_id(name: str, key: str) -> int:
    if not key.isascii() or not key.isdecimal() or len(key) > 10:
        raise InvalidRequest(
            f'{name} has the key {key[:40]!r}: keys are token ids such as "42"',
            param=name,
            code="invalid_value",
        )
    return int(key)
