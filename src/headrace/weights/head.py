"""The head of an encoder: what its output rows are scores of, as the files of a checkpoint say."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

HeadKind = Literal["classify", "token_classify", "masked_lm", "late_interaction", "spans"]
"""Scores of a text for labels, of each token for labels, of a text for the entries of the vocabulary
(SPLADE), vectors of each token for late interaction (ColBERT), states of each token that a span head reads
(GLiNER, the tagger)."""
Activation = Literal["softmax", "sigmoid", "identity"]
TaskName = Literal[
    "generate", "embed", "token_embed", "sparse_embed", "classify", "token_classify", "entities"
]
"""What a model can be asked for."""

_TASKS: dict[HeadKind, tuple[TaskName, ...]] = {
    "classify": ("classify",),
    "token_classify": ("token_classify",),
    "masked_lm": ("sparse_embed",),
    "late_interaction": ("token_embed",),
    "spans": ("entities",),
}


class Head(Struct, frozen=True, kw_only=True):
    """`labels` are those of the output numbers, in order; `activation` turns these into probabilities.

    A head with one label is a score: that of a cross-encoder, a reward model or a regression.
    """

    kind: HeadKind
    labels: tuple[str, ...] = ()
    activation: Activation = "identity"

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """What a model with this head can be asked for."""
        return _TASKS[self.kind]
