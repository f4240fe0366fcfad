"""What ranks do between instructions (tensor parallelism): ops that no model definition has."""

from headrace.errors import ProgramError
from headrace.ops.op import op
from headrace.ops.value import Array


@op("T A -> T columns", tolerance=0.0)
def all_gather(x: Array, *, first: int, columns: int) -> Array:
    """All columns, of which `x` has those from `first` on; after a table of which a rank has some rows, all
    rows, of which `x` has those."""
    raise ProgramError(f"all_gather: columns {first} to {first + x.shape[1]} of {columns} are one rank's")


@op("T A -> T columns", tolerance=0.0)
def slice_columns(x: Array, *, first: int, columns: int) -> Array:
    """A rank's columns of whole rows."""
    return x[:, first : first + columns]
