"""The architectures of GGUF files: a file for each family, which declares its `ARCHITECTURES`."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping

from headrace.errors import UnsupportedModel
from headrace.weights.gguf.architecture import Architecture
from headrace.weights.gguf.metadata_keys import MetadataKeys
from headrace.weights.gguf.reader import corrupt_metadata


def _declared() -> tuple[Architecture, ...]:
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return tuple(known for module in modules for known in module.ARCHITECTURES)


_ALL = _declared()
_MODEL_TYPES: Mapping[str, Architecture] = {kind: known for known in _ALL for kind in known.model_types}


def architecture_of(metadata: Mapping[str, object], file: str) -> Architecture:
    """The architecture of a file; UnsupportedModel names it, the nearest and the known ones."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise corrupt_metadata(file, "general.architecture", name, "the name of an architecture")
    variants = [known for known in _ALL if known.name == name]
    if not variants:
        names = sorted({known.name for known in _ALL})
        nearest = difflib.get_close_matches(name[:60], names, 1, cutoff=0)[0]
        raise UnsupportedModel(
            f"{file} holds the architecture {name[:60]!r}, which is not supported as GGUF; the nearest that "
            f"is: {nearest!r}; known: {', '.join(names)}"
        )
    # Mixtral's files say that they are a Llama, with experts.
    mixture = len(variants) > 1 and MetadataKeys(metadata, name, file).integer("expert_count", 0) > 0
    return next((known for known in variants if bool(known.experts) == mixture), variants[0])


def by_model_type(model_type: str) -> Architecture:
    """The architecture whose GGUF files stand for a `model_type`; UnsupportedModel where there is none."""
    if model_type not in _MODEL_TYPES:
        raise UnsupportedModel(
            f"model_type {model_type!r} has no GGUF architecture; known: {', '.join(sorted(_MODEL_TYPES))}"
        )
    return _MODEL_TYPES[model_type]
