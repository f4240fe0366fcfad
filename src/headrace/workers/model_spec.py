"""Which models to serve: names, paths and options, from the command line and the settings file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from headrace.config.names import known_name
from headrace.config.providers import is_remote
from headrace.config.settings import SETTINGS, Settings
from headrace.config.sources import MODELS, ModelTable, models_table
from headrace.errors import InvalidRequest, UsageError
from headrace.loading.options import EngineOptions, engine_options
from headrace.loading.text_assets import served_name
from headrace.sampling.params import PARAMETERS, SamplingParams, with_defaults
from headrace.weights.hub.bundled import BUNDLED_DEFAULT, list_bundled
from headrace.workers.model_adapters import check_name

OF_A_MODEL = tuple(name for name, setting in SETTINGS.items() if "model" in setting.scopes)
"""Settings that a model's own table may have."""


class ModelSpec(Struct, frozen=True, kw_only=True):
    """One served model. `name` and `aliases` are for clients; `model` is an argument of
    `weights.hub.resolve`.

    `keep_alive_s` is how long the model stays in memory unused; negative: until the memory is needed.
    `sampling` are parameters over the model's own defaults, `template_variables` those of its chat template,
    `adapters` paths by name.
    """

    name: str
    model: str
    options: EngineOptions
    aliases: tuple[str, ...] = ()
    keep_alive_s: float = -1.0
    sampling: Mapping[str, Any] = {}
    template_variables: Mapping[str, Any] = {}
    adapters: Mapping[str, str] = {}

    def loads_like(self, other: ModelSpec) -> bool:
        """True if a model loaded for one spec can serve the other."""
        return replace(self, name="", aliases=(), keep_alive_s=0.0) == replace(
            other, name="", aliases=(), keep_alive_s=0.0
        )


def spec_of(model: str, settings: Settings) -> ModelSpec:
    """The spec of a model given only by its name or path."""
    name = served_name(model, Path(model))
    return ModelSpec(
        name=name,
        model=model,
        options=engine_options(settings),
        keep_alive_s=settings.keep_alive,
        sampling=_sampling(settings.override_generation_config or {}),
        template_variables=settings.default_chat_template_kwargs or {},
    )


def _adapters(given: Mapping[str, object]) -> Mapping[str, str]:
    """Paths of adapters by name; UsageError."""
    found: dict[str, str] = {}
    for name, path in given.items():
        if not isinstance(path, str) or not path:
            raise UsageError(f'adapters: {name!r} has no path: write NAME = "PATH"')
        try:
            check_name(name)
        except InvalidRequest as error:
            raise UsageError(f"adapters: {error.message}") from None
        found[name] = path
    return found


def _sampling(given: Mapping[str, object]) -> Mapping[str, Any]:
    """Sampling parameters as the settings have them; UsageError for what is none."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = {"max_new_tokens": "max_tokens"}.get(key, key)  # as generation_config.json has it
        known_name(name, list(PARAMETERS), f"override_generation_config: unknown parameter {key!r}")
        found[name] = tuple(cast("list[Any]", value)) if isinstance(value, list) else value
    try:
        with_defaults(SamplingParams(), found)
    except InvalidRequest as error:
        raise UsageError(f"override_generation_config: {error.message}") from None
    return found


def read_specs(
    models: Sequence[str], settings: Settings, *, folders: Sequence[Path] | None = None
) -> list[ModelSpec]:
    """`models`, then those of `[models]` in the nearest headrace.toml that has it; if there are none, the
    bundled ones. Entries that are answered elsewhere are left out. `served_model_name` names the first,
    which has the `adapters`. Raises UsageError if a table is invalid or a name refers to two models.
    """
    specs = [spec_of(model, settings) for model in models]
    found = models_table(folders)
    if found is not None:
        specs += _specs_of_table(*found, settings)
    specs = specs or _bundled(settings)
    if settings.served_model_name:
        name, *aliases = settings.served_model_name
        specs[0] = replace(specs[0], name=name, aliases=(*aliases, *specs[0].aliases))
    if settings.adapters:
        specs[0] = replace(specs[0], adapters={**specs[0].adapters, **_adapters(settings.adapters)})
    taken: set[str] = set()
    for spec in specs:
        for name in (spec.name, *spec.aliases):
            if name in taken:
                raise UsageError(f"two models are named {name!r}: rename one of them in [{MODELS}]")
            taken.add(name)
    return specs


def _bundled(settings: Settings) -> list[ModelSpec]:
    """The bundled models, the default one first. Sizes, drafts and pooling in the settings are
    meant for that one: the others have other limits."""
    own = without_sizes(settings)
    others = [name for name in list_bundled() if name != BUNDLED_DEFAULT]
    return [spec_of(BUNDLED_DEFAULT, settings), *(spec_of(name, own) for name in others)]


def without_sizes(settings: Settings) -> Settings:
    """Without what is meant for one model: sizes, drafts and pooling."""
    return replace(
        settings,
        max_model_len=None,
        kv_cache_memory=None,
        speculative_model=None,
        speculative_layers=None,
        pooling="auto",
    )


def _specs_of_table(path: Path, entries: ModelTable, settings: Settings) -> list[ModelSpec]:
    return [
        _spec(f"{path}: {MODELS}.{name}", name, entry, settings)
        for name, entry in entries.items()
        if not is_remote(entry)
    ]


def _spec(where: str, name: str, entry: object, settings: Settings) -> ModelSpec:
    """A model's entry: a path, or a table with `path`, `aliases` and its own settings."""
    if isinstance(entry, str):
        entry = {"path": entry}
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is neither a path nor a table")
    given = dict(cast("Mapping[str, Any]", entry))
    model, aliases = given.pop("path", name), given.pop("aliases", [])
    texts = [model, *cast("list[object]", aliases)] if isinstance(aliases, list) else [None]
    if not all(isinstance(text, str) and text for text in texts):
        raise UsageError(f"{where}: path is a text and aliases is a list of texts")
    own: dict[str, Any] = {}
    if "model" in given:
        raise UsageError(
            f"{where}: 'model' is a model of a provider, and needs 'provider'; one of this machine is 'path'"
        )
    for key, value in given.items():
        setting = SETTINGS[known_name(key, ["path", "aliases", *OF_A_MODEL], f"{where}: unknown {key!r}")]
        own[key] = setting.parse(value, f"{where}.{key}")
    settings = replace(settings, **own)
    return replace(
        spec_of(model, settings),
        name=name,
        aliases=tuple(cast("list[str]", aliases)),
        adapters=_adapters(own.get("adapters") or {}),
    )
