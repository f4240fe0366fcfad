"""How the vector of a text is made from those of its tokens, as sentence-transformers' files say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, cast

from msgspec import Struct

from headrace.errors import UnsupportedModel
from headrace.weights.modules import MODULES, module_config, read_modules
from headrace.weights.span_head import has_span_head

PoolingKind = Literal["mean", "max", "cls", "last", "none"]
"""The mean or the maximum of all tokens' vectors, that of the first token, that of the last, or each
token's own."""

_KNOWN = re.compile(
    r"Transformer Pooling( Dense)*( Normalize)?|Transformer( Dense)+( Normalize)?"
    r"|(MLM)?Transformer SpladePooling"
)
_MODES: dict[str, PoolingKind] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_KINDS: dict[str, PoolingKind] = {"mean": "mean", "max": "max", "cls": "cls", "lasttoken": "last"}


class Pooling(Struct, frozen=True):
    """The kind, and whether vectors are brought to length 1."""

    kind: PoolingKind
    normalize: bool = True


def read_pooling(folder: Path) -> Pooling | None:
    """What modules.json and the config of its pooling module say; each token's vector where a head reads
    spans; None for any other folder, and for models whose head makes the rows (late interaction, SPLADE).

    UnsupportedModel for modules and kinds that are not known here, CorruptFile for files that are broken.
    """
    modules = read_modules(folder)
    if not modules:
        return Pooling("none", normalize=False) if has_span_head(folder) else None
    kinds = [module.kind for module in modules]
    if not _KNOWN.fullmatch(" ".join(kinds)):
        raise UnsupportedModel(
            f"{MODULES} lists {', '.join(kinds)[:200]}: supported are Transformer, Pooling, Dense and Normalize"
            " in this order, Transformer and Dense (late interaction), MLMTransformer and SpladePooling"
        )
    if kinds[1] != "Pooling":
        return None
    return Pooling(_kind(module_config(folder, modules[1])), "Normalize" in kinds)


def _kind(config: dict[str, object]) -> PoolingKind:
    named = config.get("pooling_mode")
    if isinstance(named, str) and named in _KINDS:
        return _KINDS[named]
    asked = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if len(asked) != 1 or asked[0] not in _MODES:
        wanted = cast("object", named) if named is not None else ", ".join(asked) or "none"
        raise UnsupportedModel(
            f"the pooling of this model is {str(wanted)[:200]!r}: supported is one of {', '.join(_MODES)}"
        )
    return _MODES[asked[0]]
