"""How vectors are written in replies: numbers or base64, of which type, of which length."""

from __future__ import annotations

import base64
from typing import Any, Literal, cast

import numpy as np
from msgspec import Struct

from headrace.engine.unit_rows import unit_rows
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.ops.value import Array
from headrace.tasks.vector_types import VectorType, as_type

EncodingFormat = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]
_NEAR_ONE = 1e-3


class VectorFormat(Struct, frozen=True, kw_only=True):
    """`kind` is the type of numbers, written as base64 of little-endian bytes with `as_base64`. `param` is
    the field that asked for it."""

    kind: VectorType = "float"
    as_base64: bool = False
    param: str = "encoding_format"

    def written(self, vectors: Array, call: CallContext) -> list[Any]:
        """Vectors [texts, size]: of each a list of numbers, or a text. With a warning where vectors get the
        length 1 that types of one byte need."""
        if self.kind in ("int8", "uint8") and not has_unit_rows(vectors):
            call.warn(self.param, f"{self.kind} is of vectors of length 1: they were brought to it")
            vectors = unit_rows(vectors)
        found = as_type(vectors, self.kind)
        return [as_base64(row) for row in found] if self.as_base64 else found.tolist()


def as_base64(values: np.ndarray[Any, np.dtype[Any]]) -> str:
    """An array of any shape as base64 of its little-endian bytes."""
    return base64.b64encode(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data).decode()


def read_format(**given: str | list[str] | None) -> VectorFormat:
    """What the fields of a body say, by name: each a format or a type, or (`output_dtype`) a type that
    base64 may be of. InvalidRequest where they contradict each other."""
    kind: VectorType | None = None
    text, asked = False, "encoding_format"
    for name, value in given.items():
        if isinstance(value, list):
            if len(value) != 1:
                raise InvalidRequest(
                    f"{name} has {len(value):,} types: send one, several are given by /v2/embed", param=name
                )
            [value] = value
        if value is None:
            continue
        if value == "base64":
            text = True
            continue
        named = cast("VectorType", value)
        if kind is not None and kind != named:
            raise InvalidRequest(f"{name} is {value}, {asked} is {kind}: send one of them", param=name)
        kind, asked = named, name
    return VectorFormat(kind=kind or "float", as_base64=text, param=asked)


def has_unit_rows(vectors: Array) -> bool:
    """Whether all vectors have length 1."""
    return bool(np.all(np.abs(np.linalg.norm(vectors, axis=-1) - 1) < _NEAR_ONE))


def of_length(vectors: Array, normalize: bool | None, call: CallContext, param: str) -> Array:
    """Vectors [texts, size] as asked: of length 1, or (None, False) as the model makes them; a warning where
    those have length 1 although `param` says that they should not be brought to it."""
    if normalize:
        return unit_rows(vectors)
    if normalize is False and len(vectors) and has_unit_rows(vectors):
        call.warn(param, f"{param} false has no effect: the model itself makes vectors of length 1")
    return vectors
