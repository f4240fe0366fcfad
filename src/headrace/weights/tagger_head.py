"""The head of a tagger, two files beside its encoder: what scores tokens for labels, how labels are written.

`tagger.json` names the marks in front of each label and in front of the text, the longest span in tokens and,
optionally, the window in which long texts are read.
`head.safetensors` holds `token.weight` and `label.weight` [3 * width, hidden] and `bias` [3], where the three
are start, end and inside of an entity.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights import strict_json
from headrace.weights.config_json import integer, text
from headrace.weights.confined import confined
from headrace.weights.safetensors.reader import SafetensorsFile

SETTINGS, TENSORS = "tagger.json", "head.safetensors"
PARTS = 3
Array = NDArray[np.float32]
_MAX_BYTES = 1 << 20


class TaggerHead(Struct, frozen=True, eq=False):
    """`token` and `label` float32 [hidden, PARTS, width], `bias` [PARTS]; `longest_span` and `window`, the
    length of the pieces in which long texts are read best, are in tokens.
    """

    token: Array
    label: Array
    bias: Array
    label_mark: str
    text_mark: str
    longest_span: int
    window: int | None

    def chances(self, tokens: Array, labels: Array) -> Array:
        """Of states [tokens, hidden] and of those at the labels' marks [labels, hidden]: [tokens, labels,
        PARTS] in (0, 1)."""
        own = np.einsum("th,hkd->tkd", tokens, self.token)
        theirs = np.einsum("lh,hkd->lkd", labels, self.label)
        scores = np.einsum("tkd,lkd->tlk", own, theirs) / np.float32(own.shape[2]) ** 0.5 + self.bias
        return 1 / (1 + np.exp(-scores))


def is_tagger(folder: Path) -> bool:
    """Whether the folder says how labels are written for it."""
    return (folder / SETTINGS).is_file()


def read_tagger_head(folder: Path) -> TaggerHead:
    """Raises UnsupportedModel for a folder that is no tagger's, CorruptFile where its files are broken."""
    if not is_tagger(folder):
        raise UnsupportedModel(
            f"{folder.name} has no {SETTINGS} and so finds no entities: load a tagger, such as"
            " train/tagger.py makes"
        )
    settings = strict_json.read_object(confined(folder, SETTINGS), _MAX_BYTES)
    with SafetensorsFile(confined(folder, TENSORS)) as file:
        absent = {"token.weight", "label.weight", "bias"} - file.tensors.keys()
        if absent:
            raise CorruptFile(
                f"{TENSORS} of {folder.name} has no {', '.join(sorted(absent))}: fetch it again"
            )
        token, label, bias = (
            file.float32(file.tensors[name]) for name in ("token.weight", "label.weight", "bias")
        )
    if bias.shape != (PARTS,) or token.shape != label.shape or token.ndim != 2 or len(token) % PARTS:
        raise CorruptFile(
            f"{TENSORS} of {folder.name} holds token {token.shape}, label {label.shape} and bias "
            f"{bias.shape}; they must be [{PARTS} * width, hidden] twice and [{PARTS}]"
        )
    hidden = token.shape[1]
    return TaggerHead(
        token=token.T.reshape(hidden, PARTS, -1),
        label=label.T.reshape(hidden, PARTS, -1),
        bias=bias,
        label_mark=text(settings, "label_mark"),
        text_mark=text(settings, "text_mark"),
        longest_span=integer(settings, "longest_span"),
        window=integer(settings, "window", 0, minimum=0) or None,
    )
