"""Flags described in one place and given to commands: settings from their table, and sampling parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_type_hints

import typer
from msgspec import Struct

from headrace.cli.help_sections import KEYS, MODEL, MORE_SAMPLING, SAMPLING, SERVER
from headrace.config.settings import MODEL_SETTINGS, SETTINGS, Settings
from headrace.config.sources import load_settings
from headrace.config.values import PATHS
from headrace.errors import InvalidRequest, UsageError
from headrace.sampling.parameters import Kind, Parameter
from headrace.sampling.params import PARAMETERS, SamplingParams


class Flag(Struct, frozen=True):
    """One flag of a command: the name of its parameter, its type and how typer shows it."""

    name: str
    type: Any
    option: Any


def takes(parameter: str, flags: Sequence[Flag], build: Callable[[dict[str, Any]], object]) -> Any:
    """Decorate a command so that its keyword `parameter` is built from `flags`, which typer then shows."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            given = {flag.name: values.pop(flag.name) for flag in flags}
            function(**values, **{parameter: build(given)})

        hints = get_type_hints(function, include_extras=True)
        own = [p for p in inspect.signature(function).parameters.values() if p.name != parameter]
        kind = inspect.Parameter.KEYWORD_ONLY
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=kind, annotation=hints[p.name]) for p in own]
            + [inspect.Parameter(f.name, kind, default=None, annotation=_annotation(f)) for f in flags]
        )
        command.__annotations__ = {p.name: hints[p.name] for p in own}
        command.__annotations__ |= {flag.name: _annotation(flag) for flag in flags}
        command.__doc__ = function.__doc__
        return command

    return decorate


def _annotation(flag: Flag) -> Any:
    return Annotated[flag.type | None, flag.option]


def takes_settings(*names: str) -> Any:
    """Decorate a command so that it gets `settings`, with a flag for each of `names`."""
    return takes(
        "settings", [_setting_flag(name) for name in names], lambda given: load_settings(_present(given))
    )


def takes_settings_again(*names: str) -> Any:
    """The same for a command that gets `read_settings`, which it can call whenever they may have changed."""
    return takes("read_settings", [_setting_flag(name) for name in names], _reader)


def _reader(given: Mapping[str, object]) -> Callable[[], Settings]:
    return lambda: load_settings(_present(given))


def _present(given: Mapping[str, object]) -> Mapping[str, object]:
    """What was given: a flag that may be repeated is an empty list otherwise."""
    return {name: None if value == [] else value for name, value in given.items()}


def _setting_flag(name: str) -> Flag:
    setting = SETTINGS[name]
    help = f"{setting.help} [default: {setting.shown_default}]"
    shown = setting.values.shown
    is_switch = isinstance(setting.default, bool)
    option = typer.Option(
        setting.flag,
        *setting.aliases,
        help=help,
        metavar=None if is_switch else shown if setting.values.choices else shown.upper(),
        show_default=False,
        rich_help_panel=_section(name),
    )
    repeated = setting.values is PATHS
    return Flag(name, list[str] if repeated else bool if is_switch else str, option)


def _section(name: str) -> str:
    if name in MODEL_SETTINGS:
        return MODEL
    return KEYS if name.startswith(("key_", "max_")) else SERVER


_SHOWN: Mapping[Kind, tuple[Any, str]] = {
    "integer": (int, "N"),
    "number": (float, "X"),
    "switch": (bool, ""),
    "texts": (list[str], "TEXT"),
    "ids": (list[int], "ID"),
    "biases": (list[str], "ID=X"),
}


def _sampling_flag(parameter: Parameter, flag: str) -> Flag:
    type, metavar = _SHOWN[parameter.kind]
    option = typer.Option(
        flag,
        help=parameter.help,
        metavar=metavar or None,
        show_default=False,
        rich_help_panel=SAMPLING if parameter.name in COMMON else MORE_SAMPLING,
    )
    return Flag(parameter.name, type, option)


# What most people set, in this order.
COMMON = (
    *("temperature", "max_tokens", "stop", "seed", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
SAMPLING_FLAGS = tuple(
    _sampling_flag(row, row.flag)
    for row in (*map(PARAMETERS.__getitem__, COMMON), *(PARAMETERS[n] for n in PARAMETERS if n not in COMMON))
    if row.flag
)


def sampling_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, as fields of SamplingParams; UsageError for a value that these refuse."""
    values = {name: value for name, value in given.items() if value not in (None, [])}
    values |= {name: tuple(values[name]) for name in values if PARAMETERS[name].is_list}
    if "logit_bias" in values:
        values["logit_bias"] = dict(_bias(text) for text in values["logit_bias"])
    try:
        SamplingParams(**values)
    except InvalidRequest as error:
        raise UsageError(error.message, param=error.param) from None
    return values


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise UsageError(
            f"--logit-bias {text!r} is not of the form ID=X, such as 42=-100", param="logit_bias"
        ) from None


takes_sampling = takes("sampling", SAMPLING_FLAGS, sampling_values)
