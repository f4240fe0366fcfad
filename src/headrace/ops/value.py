"""A value of a program being recorded: a named array whose leading size may be symbolic."""

from __future__ import annotations

from typing import Literal, NoReturn, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Dim = int | str
"""A size: a number from the config, or a symbol (T tokens, B sequences, R rows, ...)."""

Kind = Literal["input", "weight", "constant", "state", "temp"]
Attr = int | float | str
Array = NDArray[np.float32]
Ints = NDArray[np.int32]


class Records(Protocol):
    """Interface of a value to its recorder: appends the instruction that uses the value."""

    def emit(self, op: object, inputs: tuple[Value | None, ...], attrs: dict[str, Attr]) -> object:
        """Append an instruction and return its output value (None, one value, or a tuple of values)."""
        ...


class Value(Struct, frozen=True, eq=False):
    """One array of a program. Values compare by identity; `name` is for display only."""

    name: str
    shape: tuple[Dim, ...]
    kind: Kind
    recorder: Records

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self.name} is symbolic: a program cannot branch on data")

    def __int__(self) -> NoReturn:
        raise TypeError(f"{self.name} is symbolic: constants come from the config only")

    def __repr__(self) -> str:
        return f"{self.name}:{'x'.join(str(d) for d in self.shape)}"
