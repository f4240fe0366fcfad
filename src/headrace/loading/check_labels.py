"""Whether the labels of a head are as many as its weights have outputs."""

from __future__ import annotations

from headrace.errors import CorruptFile
from headrace.program.program import Program
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.head import Head


def check_labels(checkpoint: CheckpointReader, program: Program, head: Head | None) -> None:
    """Raises CorruptFile where the output matrix of a classifier has rows for more or fewer labels."""
    if head is None or not head.labels:
        return
    [last] = [ins for ins in program.expanded() if program.output in ins.outputs]
    matrix = last.inputs[1]
    assert matrix is not None
    shape = checkpoint.info(matrix.name).shape
    if shape and shape[0] != len(head.labels):
        raise CorruptFile(
            f"config.json has {len(head.labels):,} labels (id2label: {', '.join(head.labels[:4])[:80]}),"
            f" {matrix.name} of the checkpoint has {shape[0]:,} outputs: correct id2label, or fetch the model"
            " again"
        )
