"""Where settings come from: flags, then HEADRACE_* variables, then headrace.toml, then defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from headrace.config.names import known_name
from headrace.config.profiles import PROFILES
from headrace.config.setting import PREFIX
from headrace.config.settings import SETTINGS, Settings
from headrace.errors import UsageError

FILE_NAME = "headrace.toml"
LOCK_NAME = "headrace.lock"
MODELS = "models"
"""The file's one table, of models to serve: no setting."""
ModelTable = Mapping[str, object]
OTHER_VARIABLES: Mapping[str, str] = {
    "HEADRACE_ISA": "instruction set of the kernels (portable, avx2, avx512, amx, neon); for tests",
    "HEADRACE_MASTER_KEY": "secret under which keys of providers are encrypted in the store",
    "HEADRACE_SHARED_DATA": "folder of real inputs that some tests read",
}


def load_settings(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folders: Sequence[Path] | None = None,
) -> Settings:
    """Settings from `flags` (None: not given), `environ`, headrace.toml in `folders`, defaults: first wins.

    The first folder's file wins over the second's. A profile's values come before defaults. Raises UsageError
    that names an unknown key or variable and the nearest valid one, or a value that cannot be read and where
    it stands.
    """
    values: dict[str, object] = {}
    for folder in reversed(default_folders() if folders is None else folders):
        values |= _from_file(folder / FILE_NAME)
    values |= _with_rest(values, _from_environment(os.environ if environ is None else environ))
    for name, value in (flags or {}).items():
        setting = SETTINGS[known_name(name, list(SETTINGS), f"unknown setting {name!r}")]
        if value is not None:
            values |= _with_rest(values, {name: setting.parse(value, setting.flag)})
    values = {**PROFILES.get(str(values.get("profile")), {}), **values}
    return Settings(**values)  # pyright: ignore[reportArgumentType]


def _with_rest(values: Mapping[str, object], newer: Mapping[str, object]) -> dict[str, object]:
    """The newer values; a journal's folder alone keeps the rest of its table, such as the key."""
    below, journal = values.get("journal"), newer.get("journal")
    if (
        isinstance(below, Mapping)
        and isinstance(journal, Mapping)
        and list(cast("ModelTable", journal)) == ["folder"]
    ):
        return {**newer, "journal": {**below, **journal}}
    return dict(newer)


def default_folders() -> tuple[Path, ...]:
    """Where headrace.toml is looked for, nearest first: here, then the user's configuration folder."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path.cwd(), (Path(base) if base else Path.home() / ".config") / "headrace")


def lock_file(settings: Settings) -> Path:
    """`mcp_lock`, or the lock beside the nearest headrace.toml that has [mcp], else here."""
    if settings.mcp_lock is not None:
        return settings.mcp_lock
    folders = default_folders()
    return next((one for one in folders if "mcp" in read_file(one / FILE_NAME)), folders[0]) / LOCK_NAME


def read_file(path: Path) -> dict[str, Any]:
    """A headrace.toml as it is written, empty where there is none; UsageError where it cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def models_table(folders: Sequence[Path] | None = None) -> tuple[Path, ModelTable] | None:
    """The entries of `[models]` in the nearest headrace.toml that has them, and its path; None without."""
    for folder in default_folders() if folders is None else folders:
        path = folder / FILE_NAME
        table: object = read_file(path).get(MODELS)
        if table is not None:
            if not isinstance(table, Mapping):
                raise UsageError(f"{path}: {MODELS} is a table with a model in each entry: [{MODELS}.NAME]")
            return path, cast("ModelTable", table)
    return None


def model_entries(folders: Sequence[Path] | None = None) -> ModelTable:
    """The entries of `models_table`, none where there is no table."""
    found = models_table(folders)
    return {} if found is None else found[1]


def _from_file(path: Path) -> dict[str, object]:
    content = read_file(path)
    values: dict[str, object] = {}
    content.pop(MODELS, None)
    for key, value in content.items():
        name = known_name(key, list(SETTINGS), f"{path}: unknown setting {key!r}")
        values[name] = SETTINGS[name].parse(value, f"{path}: {name}")
    return values


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    by_variable = {setting.variable: setting for setting in SETTINGS.values()}
    values: dict[str, object] = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        names = [*by_variable, *OTHER_VARIABLES]
        name = known_name(variable, names, f"unknown environment variable {variable}")
        values[by_variable[name].name] = by_variable[name].parse(value, name)
    return values
