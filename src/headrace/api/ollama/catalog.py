"""The models on this machine as Ollama's clients list them: served, shipped, in the hub's cache, aliases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from headrace.api.ollama.model_names import TAG
from headrace.api.ollama.schema import OllamaDetails
from headrace.api.service import Service
from headrace.errors import HeadraceError, ModelNotFound
from headrace.storage.aliases import Alias, Aliases
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.hub.resolver import list_local
from headrace.weights.tensor_stats import StoredClass, stored_classes

_THOUSANDS: Mapping[str, float] = {"B": 1e9, "M": 1e6, "K": 1e3}


class CatalogEntry(Struct, frozen=True, kw_only=True):
    """A name with the model behind it. `parameters` counts weights."""

    name: str
    path: Path
    alias: Alias | None = None
    size_bytes: int = 0
    modified_s: float = 0.0
    digest: str = ""
    parameters: int = 0
    details: OllamaDetails = OllamaDetails()


def model_paths(service: Service) -> dict[str, Path]:
    """Where each model is, those in memory first. Looks at the disk: not for the event loop."""
    paths = _loaded_paths(service)
    for model in list_local():
        paths.setdefault(model.name, model.folder)
    return paths


def entries(service: Service) -> list[CatalogEntry]:
    """Every model, then every alias. Reads headers: not for the event loop."""
    models = {name: _entry(name, path) for name, path in model_paths(service).items()}
    aliases = [alias for alias in Aliases(service.database).all() if alias.target in models]
    return [*models.values(), *(_aliased(models[alias.target], alias) for alias in aliases)]


def find_entry(service: Service, name: str) -> CatalogEntry:
    """The entry of that name; ModelNotFound. A name that is not listed never reaches the disk."""
    name, loaded = name.removesuffix(TAG), _loaded_paths(service)
    if name in loaded:
        return _entry(name, loaded[name])
    paths = model_paths(service)
    if name in paths:
        return _entry(name, paths[name])
    alias = Aliases(service.database).find(name)
    if alias is not None and alias.target in paths:
        return _aliased(_entry(alias.target, paths[alias.target]), alias)
    raise ModelNotFound(f"there is no model {name[:200]!r} here; here are {', '.join(paths)}", param="model")


def _loaded_paths(service: Service) -> dict[str, Path]:
    return {entry.name: entry.model.folder for entry in service.models.entries if entry.model is not None}


def _entry(name: str, path: Path) -> CatalogEntry:
    """What the headers of a model's files tell; the name alone where they cannot be read."""
    try:
        with open_checkpoint(path) as checkpoint:
            stored = stored_classes(checkpoint)
            family = checkpoint.config.get("model_type")
            digest, single = checkpoint.fingerprint, checkpoint.metadata is not None
        modified_s = path.stat().st_mtime
    except (HeadraceError, OSError):
        return CatalogEntry(name=name, path=path)
    parameters = sum(entry.parameters for entry in stored)
    family = family if isinstance(family, str) else ""
    details = OllamaDetails(
        format="gguf" if single else "safetensors",
        family=family,
        families=[family],
        parameter_size=_rounded(parameters),
        quantization_level=_usual_type(stored),
    )
    return CatalogEntry(
        name=name,
        path=path,
        size_bytes=sum(entry.bytes for entry in stored),
        modified_s=modified_s,
        digest=digest,
        parameters=parameters,
        details=details,
    )


def _aliased(entry: CatalogEntry, alias: Alias) -> CatalogEntry:
    details = OllamaDetails(
        parent_model=entry.name,
        format=entry.details.format,
        family=entry.details.family,
        families=entry.details.families,
        parameter_size=entry.details.parameter_size,
        quantization_level=entry.details.quantization_level,
    )
    return replace(entry, name=alias.name, alias=alias, modified_s=float(alias.created_s), details=details)


def _usual_type(stored: Sequence[StoredClass]) -> str:
    """The type of most weights."""
    counts: dict[str, int] = {}
    for entry in stored:
        counts[entry.type] = counts.get(entry.type, 0) + entry.parameters
    return max(counts, key=counts.__getitem__, default="")


def _rounded(parameters: int) -> str:
    for unit, size in _THOUSANDS.items():
        if parameters >= size:
            return f"{parameters / size:.1f}{unit}"
    return str(parameters)
