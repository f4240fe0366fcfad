"""Settings: each described once, read from flags, then HEADRACE_* variables, then headrace.toml."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from headrace.config.values import (
    a_path,
    a_size,
    a_switch,
    a_text,
    an_integer,
    idle_seconds,
    one_of,
    origins,
    seconds,
    texts,
)
from headrace.errors import UsageError

PREFIX = "HEADRACE_"
FILE_NAME = "headrace.toml"
MODELS = "models"
"""The file's one table, of models to serve: no setting."""
OTHER_VARIABLES: Mapping[str, str] = {
    "HEADRACE_ISA": "instruction set of the kernels (portable, avx2, avx512, amx, neon); for tests",
    "HEADRACE_SHARED_DATA": "folder of real inputs that some tests read",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings: what help texts, variables, the file and the docs are made of."""

    name: str
    default: object
    shown_default: str
    type_name: str
    choices: tuple[str, ...]
    help: str
    parse: Callable[[object], object]
    aliases: tuple[str, ...] = ()
    """Further flags, those of other servers."""

    @property
    def flag(self) -> str:
        """The command-line option, e.g. `--kv-cache-dtype`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable, e.g. `HEADRACE_KV_CACHE_DTYPE`."""
        return PREFIX + self.name.upper()


def _setting(
    default: Any,
    parse: Callable[[object], object],
    type_name: str,
    help: str,
    *,
    shown_default: str | None = None,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
) -> Any:
    row = {"parse": parse, "type_name": type_name, "help": help, "choices": choices, "aliases": aliases}
    row["shown_default"] = str(default) if shown_default is None else shown_default
    return field(default=default, metadata=row)


def _one_of(default: str, help: str, *choices: str, aliases: tuple[str, ...] = ()) -> Any:
    return _setting(default, one_of(*choices), "|".join(choices), help, choices=choices, aliases=aliases)


def default_cache_dir() -> Path:
    """Where packed weights are kept unless told otherwise."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headrace"


def default_store() -> Path:
    """Where the store is kept unless told otherwise."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "headrace" / "headrace.sqlite3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting, typed and checked. Make one with `load_settings`."""

    quantization: str = _one_of(
        "auto",
        "weight format to run in; auto and keep: as stored (the shipped mini: int8); others quantize on load",
        "auto",
        "keep",
        "bf16",
        "int8",
        "int4",
        aliases=("--dtype",),
    )
    kv_cache_dtype: str = _one_of("auto", "type of the keys and values kept in memory", "auto", "f32", "bf16")
    max_model_len: int | None = _setting(
        None,
        an_integer(1),
        "tokens",
        "context length in tokens",
        shown_default="the model's limit",
        aliases=("--ctx-size",),
    )
    threads: int | None = _setting(
        None, an_integer(1, 1024), "count", "compute threads", shown_default="the cores it may use"
    )
    max_num_seqs: int = _setting(32, an_integer(1, 4096), "count", "sequences computed at the same time")
    max_batch_tokens: int = _setting(
        512,
        an_integer(1, 2**20),
        "tokens",
        "most tokens computed in one step",
        aliases=("--max-num-batched-tokens",),
    )
    kv_cache_memory: int | None = _setting(
        None,
        a_size,
        "size",
        "memory for keys and values, e.g. 4GiB",
        shown_default="planned from free memory",
    )
    backend: str = _one_of(
        "native",
        "what runs the model: C++ kernels, the NumPy definition, torch",
        "native",
        "numpy",
        "torch",
    )
    speculative: str = _one_of(
        "auto",
        "draft tokens and verify several in one step where that pays; never changes them",
        "auto",
        "off",
    )
    speculative_model: str | None = _setting(
        None,
        a_text,
        "model",
        "small model with the same tokenizer that drafts tokens, as nano does for mini",
        shown_default="none",
    )
    speculative_layers: int | None = _setting(
        None,
        an_integer(1),
        "count",
        "first layers of the model itself that draft tokens",
        shown_default="none",
    )
    cache_dir: Path | None = _setting(
        None, a_path, "folder", "where packed weights are kept", shown_default="~/.cache/headrace"
    )
    store: Path | None = _setting(
        None,
        a_path,
        "file",
        "SQLite file of keys, logs and saved responses",
        shown_default="~/.local/share/headrace/headrace.sqlite3",
    )
    offline: bool = _setting(
        False, a_switch, "true|false", "never reach for the network", shown_default="false"
    )
    memory: int | None = _setting(
        None, a_size, "size", "memory for all models together", shown_default="what is free at the start"
    )
    keep_alive: float = _setting(
        -1.0,
        idle_seconds,
        "seconds",
        "time after which an unused model is unloaded; never: only where another needs the memory",
        shown_default="never",
    )
    load_timeout: float = _setting(
        60.0, seconds, "seconds", "time that a request waits for its model to load; then it gets 503"
    )
    load_on_demand: bool = _setting(
        False,
        a_switch,
        "true|false",
        "load also shipped and hub models that clients name, not only configured ones",
        shown_default="false",
    )
    host: str = _setting("127.0.0.1", a_text, "address", "address the server listens on")
    port: int = _setting(
        8080, an_integer(0, 65_535), "port", "port the server listens on; 0 picks a free one"
    )
    api_key: tuple[str, ...] = _setting(
        (),
        texts,
        "key[,key]",
        "keys that clients must send; several are separated by commas",
        shown_default="none",
    )
    key_rpm: int | None = _setting(
        None, an_integer(1), "count", "requests that each key may make in a minute", shown_default="no limit"
    )
    key_tpm: int | None = _setting(
        None,
        an_integer(1),
        "tokens",
        "tokens, of prompts and answers, that each key may use in a minute",
        shown_default="no limit",
    )
    key_max_concurrency: int | None = _setting(
        None, an_integer(1), "count", "requests of each key at the same time", shown_default="no limit"
    )
    max_concurrent_requests: int = _setting(
        2048, an_integer(1), "count", "maximum in-flight requests, running or queued; more get 503"
    )
    max_queued_tokens: int = _setting(
        2**22,
        an_integer(1),
        "tokens",
        "tokens of prompts that wait for their turn; beyond them requests get 503",
    )
    log_requests: bool = _setting(
        False, a_switch, "true|false", "keep a line for each request in the store", shown_default="false"
    )
    log_content: bool = _setting(
        False, a_switch, "true|false", "keep also what requests say", shown_default="false"
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (),
        texts,
        "name[,name]",
        "Host and Origin names accepted on a loopback address besides localhost",
        shown_default="none",
    )
    cors_origins: tuple[str, ...] = _setting(
        (),
        origins,
        "origin[,origin]",
        "origins whose pages may call the server from a browser, such as https://app.example; * is all",
        shown_default="none",
    )
    tool_format: str | None = _setting(
        None,
        a_text,
        "name",
        "syntax of tool calls, e.g. hermes",
        shown_default="told by the chat template",
    )
    shutdown_timeout: float = _setting(
        30.0,
        seconds,
        "seconds",
        "time that in-flight requests get to finish when the server stops",
    )

    @property
    def cache_folder(self) -> Path:
        """`cache_dir`, or its default under the user's cache folder."""
        return self.cache_dir if self.cache_dir is not None else default_cache_dir()

    @property
    def store_file(self) -> Path:
        """`store`, or its default under the user's data folder."""
        return self.store if self.store is not None else default_store()


def _table() -> dict[str, Setting]:
    return {f.name: Setting(name=f.name, default=f.default, **f.metadata) for f in fields(Settings)}


SETTINGS: Mapping[str, Setting] = _table()


def load_settings(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folders: Sequence[Path] | None = None,
) -> Settings:
    """Settings from `flags` (None: not given), `environ`, headrace.toml in `folders`, defaults: first wins.

    The first folder's file wins over the second's. Raises UsageError that names an unknown key or
    variable and the nearest valid one, or a value that cannot be read and where it stands.
    """
    values: dict[str, object] = {}
    for folder in reversed(default_folders() if folders is None else folders):
        values |= _from_file(folder / FILE_NAME)
    values |= _from_environment(os.environ if environ is None else environ)
    for name, value in (flags or {}).items():
        setting = SETTINGS[known_name(name, list(SETTINGS), f"unknown setting {name!r}")]
        if value is not None:
            values[name] = parse_setting(setting, value, setting.flag)
    return Settings(**values)  # pyright: ignore[reportArgumentType]


def default_folders() -> tuple[Path, ...]:
    """Where headrace.toml is looked for, nearest first: here, then the user's configuration folder."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path.cwd(), (Path(base) if base else Path.home() / ".config") / "headrace")


def read_file(path: Path) -> dict[str, Any]:
    """A headrace.toml as it is written, empty where there is none; UsageError where it cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _from_file(path: Path) -> dict[str, object]:
    content = read_file(path)
    values: dict[str, object] = {}
    content.pop(MODELS, None)
    for key, value in content.items():
        name = known_name(key, list(SETTINGS), f"{path}: unknown setting {key!r}")
        values[name] = parse_setting(SETTINGS[name], value, f"{path}: {name}")
    return values


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    by_variable = {setting.variable: setting for setting in SETTINGS.values()}
    values: dict[str, object] = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        names = [*by_variable, *OTHER_VARIABLES]
        name = known_name(variable, names, f"unknown environment variable {variable}")
        values[by_variable[name].name] = parse_setting(by_variable[name], value, name)
    return values


def parse_setting(setting: Setting, value: object, where: str) -> object:
    """The value of a setting; UsageError says `where` it stood and what it should be."""
    try:
        return setting.parse(value)
    except ValueError as error:
        shown = "a value that" if setting.name == "api_key" else f"{value!r}, which"
        raise UsageError(f"{where} is {shown} is not {error}", param=setting.name) from error


def known_name(name: str, names: Sequence[str], message: str) -> str:
    """`name`, or UsageError with `message` and the nearest of `names`."""
    if name in names:
        return name
    raise UsageError(message + nearest(name, names), param=name)


def nearest(name: str, names: Sequence[str]) -> str:
    """`: did you mean 'x'?` for the name most like `name`, or all names where none is alike."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f": did you mean {close[0]!r}?"
    return ": valid are " + ", ".join(names)


def settings_table() -> str:
    """The settings as a Markdown table, for the documentation."""
    lines = [
        "| flag | variable | in headrace.toml | values | default | what it does |",
        "|---|---|---|---|---|---|",
    ]
    for s in SETTINGS.values():
        values = s.type_name.replace("|", ", ")
        lines.append(
            f"| `{s.flag}` | `{s.variable}` | `{s.name}` | {values} | {s.shown_default} | {s.help} |"
        )
    return "\n".join(lines)
