"""The work of a token in products of matrices, and the peak that bounds it (Williams et al. 2009)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from headrace.executors.machine_limits import Limits
from headrace.loading.memory_plan import most_common_format, shares_per_token
from headrace.program.program import Program
from headrace.weights.packing.packed_weights import WeightSpec

_ARITHMETIC: Mapping[str, str] = {"f32": "f32", "f16": "f32", "bf16": "bf16"}
_FOR_MATRIX_UNITS = ("int8", "int4")  # of many rows; formats with scales inside a row are not


def arithmetic_of(format: str) -> str:
    """What products with weights of this format are computed in: f32, bf16 or int8."""
    return _ARITHMETIC.get(format, "int8")


def peak_of(format: str, limits: Limits) -> float:
    """Operations per second at best in products with weights of this format."""
    if format in _FOR_MATRIX_UNITS:
        return limits.best_int8_per_s
    peaks = {"f32": limits.f32_per_s, "bf16": limits.best_bf16_per_s, "int8": limits.int8_per_s}
    return peaks[arithmetic_of(format)]


class Roofline(Struct, frozen=True, kw_only=True):
    """Operations (multiplications and additions) of one token; `format` is that of most weights.

    Of a prompt only the last token is multiplied with the output matrix, so its tokens cost less than those
    that are generated.
    """

    format: str
    operations_per_prompt_token: float
    operations_per_generated_token: float

    @property
    def arithmetic(self) -> str:
        """What most products are computed in."""
        return arithmetic_of(self.format)

    def peak(self, limits: Limits) -> float:
        """Operations per second that the machine can do at best."""
        return peak_of(self.format, limits)


def roofline(program: Program, wanted: Sequence[WeightSpec]) -> Roofline:
    """Of a program with its weights in these formats."""
    shares = shares_per_token(program)
    work = {weight.name: 2.0 * weight.n * weight.k * shares.get(weight.name, 0) for weight in wanted}
    vocabulary = program.output.shape[1]
    inner = sum(work[weight.name] for weight in wanted if weight.n != vocabulary)
    return Roofline(
        format=most_common_format(wanted),
        operations_per_prompt_token=inner,
        operations_per_generated_token=sum(work.values()),
    )
