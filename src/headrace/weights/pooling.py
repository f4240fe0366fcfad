"""How the vector of a text is made from those of its tokens, as sentence-transformers' files say."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

import msgspec
from msgspec import Struct

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights import strict_json
from headrace.weights.checkpoint import confined
from headrace.weights.span_head import has_span_head

PoolingKind = Literal["mean", "cls", "last", "none"]
"""The mean of all tokens' vectors, that of the first token, that of the last, or each token's own."""

MODULES = "modules.json"
_MAX_BYTES = 1 << 20
_MODES: dict[str, PoolingKind] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_KINDS: dict[str, PoolingKind] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}


class Pooling(Struct, frozen=True):
    """The kind, and whether vectors are brought to length 1."""

    kind: PoolingKind
    normalize: bool = True


class _Module(msgspec.Struct):
    type: str
    path: str = ""


_MODULES = msgspec.json.Decoder(list[_Module])


def read_pooling(folder: Path) -> Pooling | None:
    """What modules.json and the config of its pooling module say; each token's vector where a head
    reads spans; None for any other folder.

    UnsupportedModel for modules and kinds that are not known here, CorruptFile for files that are broken.
    """
    path = confined(folder, MODULES)
    if not path.is_file():
        return Pooling("none", normalize=False) if has_span_head(folder) else None
    if path.stat().st_size > _MAX_BYTES:
        raise CorruptFile(f"{MODULES} has more than {_MAX_BYTES:,} bytes, the limit for such a file")
    modules = strict_json.decode(_MODULES, path.read_bytes(), MODULES)
    kinds = [module.type.rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedModel(
            f"{MODULES} lists {', '.join(kinds)[:200]}: supported are Transformer, Pooling and Normalize"
        )
    name = f"{modules[1].path}/config.json"
    try:
        config = strict_json.read_object(confined(folder, name), _MAX_BYTES)
    except FileNotFoundError:
        raise CorruptFile(f"{name[:200]} is missing in {folder.name}: fetch the whole model again") from None
    return Pooling(_kind(config), "Normalize" in kinds)


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
