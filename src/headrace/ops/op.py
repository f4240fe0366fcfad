"""The op decorator: the signature is the shape rule, the body the NumPy float32 definition.

Signatures follow NumPy's gufuncs: `"T K, N K, N? -> T N"`, inputs, then outputs. A letter is one size
wherever it appears; `G*D` is a multiple of D; `N?` is optional (None); a lower-case word is the value of
that attribute; `A+B` is a sum of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from headrace.errors import ProgramError
from headrace.ops.value import Attr, Dim, Value

Shape = tuple[str, ...]


class Op(Struct, frozen=True, eq=False):
    """An op: call it on values to record it, call `body` on arrays to compute it.

    `tolerance` is the maximum relative error of an executor against `body` on the same inputs.
    `writes` is the index of the input that the op modifies in place (an effect), or None.
    """

    name: str
    inputs: tuple[Shape, ...]
    optional: tuple[bool, ...]
    outputs: tuple[Shape, ...]
    body: Callable[..., Any]
    tolerance: float
    writes: int | None = None

    def __call__(self, *inputs: Value | None, **attrs: Attr) -> Any:
        """Record this op; returns its output value, or None if the op has only an effect."""
        given = inputs + (None,) * (len(self.inputs) - len(inputs))
        recorder = next((v.recorder for v in given if v is not None), None)
        if recorder is None:
            raise ProgramError(f"{self.name}: called on no value; call .body for arrays")
        return recorder.emit(self, given, attrs)

    def output_shapes(
        self, shapes: tuple[tuple[Dim, ...] | None, ...], attrs: Mapping[str, Attr] = MappingProxyType({})
    ) -> tuple[tuple[Dim, ...], ...]:
        """The shapes of the outputs. Raises ProgramError if the inputs violate the signature."""
        if len(shapes) != len(self.inputs):
            raise ProgramError(f"{self.name} takes {len(self.inputs)} inputs, got {len(shapes)}")
        bound: dict[str, Dim] = {name: size for name, size in attrs.items() if isinstance(size, int)}
        products: list[tuple[str, Dim]] = []
        for pattern, optional, shape in zip(self.inputs, self.optional, shapes, strict=True):
            if shape is None:
                if not optional:
                    raise ProgramError(f"{self.name}: the input '{' '.join(pattern)}' is required")
                continue
            if len(shape) != len(pattern):
                raise ProgramError(f"{self.name}: expected '{' '.join(pattern)}', got {shape}")
            for letter, size in zip(pattern, shape, strict=True):
                if "*" in letter:
                    products.append((letter, size))
                else:
                    self._bind(bound, letter, size)
        for letter, size in products:
            self._bind_product(bound, letter, size)
        return tuple(tuple(_size(bound, letter) for letter in shape) for shape in self.outputs)

    def _bind(self, bound: dict[str, Dim], letter: str, size: Dim) -> None:
        if bound.setdefault(letter, size) != size:
            raise ProgramError(f"{self.name}: {letter} is {bound[letter]} and {size}")

    def _bind_product(self, bound: dict[str, Dim], letter: str, size: Dim) -> None:
        group, unit_letter = letter.split("*")
        unit = bound[unit_letter]
        if not isinstance(size, int) or not isinstance(unit, int) or size % unit:
            raise ProgramError(f"{self.name}: {size} is not a multiple of {unit_letter} = {unit}")
        self._bind(bound, group, size // unit)


def _size(bound: dict[str, Dim], letter: str) -> Dim:
    sign = "*" if "*" in letter else "+"
    if sign not in letter:
        return bound[letter]
    left, right = (bound[part] for part in letter.split(sign))
    assert isinstance(left, int) and isinstance(right, int)
    return left * right if sign == "*" else left + right


def op(signature: str, *, tolerance: float, writes: int | None = None) -> Callable[[Callable[..., Any]], Op]:
    """Turn a NumPy function into an op; the module's docstring describes signatures."""
    left, right = signature.split("->")
    patterns = [tuple(part.replace("?", "").split()) for part in left.split(",")]
    outputs = [tuple(part.split()) for part in right.split(",") if part.strip()]

    def make(body: Callable[..., Any]) -> Op:
        return Op(
            name=body.__name__,
            inputs=tuple(patterns),
            optional=tuple("?" in part for part in left.split(",")),
            outputs=tuple(outputs),
            body=body,
            tolerance=tolerance,
            writes=writes,
        )

    return make
