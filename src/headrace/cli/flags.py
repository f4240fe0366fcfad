"""Flags described in one place and given to commands: settings from their table, and sampling parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_type_hints

import typer
from msgspec import Struct

from headrace.config.settings import SETTINGS, Settings
from headrace.config.sources import load_settings
from headrace.errors import InvalidRequest, UsageError
from headrace.sampling.params import SamplingParams


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
    return takes("settings", [_setting_flag(name) for name in names], load_settings)


def takes_settings_again(*names: str) -> Any:
    """The same for a command that gets `read_settings`, which it can call whenever they may have changed."""
    return takes("read_settings", [_setting_flag(name) for name in names], _reader)


def _reader(given: Mapping[str, object]) -> Callable[[], Settings]:
    return lambda: load_settings(given)


def _setting_flag(name: str) -> Flag:
    setting = SETTINGS[name]
    help = f"{setting.help} [default: {setting.shown_default}]"
    if isinstance(setting.default, bool):
        return Flag(name, bool, typer.Option(setting.flag, *setting.aliases, help=help, show_default=False))
    shown = setting.values.shown
    metavar = shown if setting.values.choices else shown.upper()
    option = typer.Option(setting.flag, *setting.aliases, help=help, metavar=metavar, show_default=False)
    return Flag(name, str, option)


def _sampling_flag(name: str, type: Any, metavar: str, help: str) -> Flag:
    declaration = "--" + name.replace("_", "-")
    return Flag(name, type, typer.Option(declaration, help=help, metavar=metavar, show_default=False))


SAMPLING_FLAGS = (
    _sampling_flag("max_tokens", int, "N", "most tokens to generate"),
    _sampling_flag("temperature", float, "X", "0 always takes the likeliest token"),
    _sampling_flag("top_k", int, "N", "only the N likeliest tokens; 0 is off"),
    _sampling_flag("top_p", float, "X", "only the likeliest tokens that sum up to X"),
    _sampling_flag("min_p", float, "X", "only tokens at least X times as likely as the likeliest"),
    _sampling_flag("typical_p", float, "X", "only the most typical tokens that sum up to X"),
    _sampling_flag("top_n_sigma", float, "X", "only logits within X standard deviations of the largest"),
    _sampling_flag("xtc_probability", float, "X", "how often the likeliest tokens are left out"),
    _sampling_flag("xtc_threshold", float, "X", "from which share on a token is one of these"),
    _sampling_flag("dynatemp_range", float, "X", "vary the temperature by so much with the entropy"),
    _sampling_flag("dynatemp_exponent", float, "X", "how the temperature follows the entropy"),
    _sampling_flag("mirostat", int, "N", "version 1 or 2 instead of truncation; 0 is off"),
    _sampling_flag("mirostat_tau", float, "X", "surprise that mirostat aims at, in bits"),
    _sampling_flag("mirostat_eta", float, "X", "how fast mirostat adapts"),
    _sampling_flag("repetition_penalty", float, "X", "make tokens already seen less likely; 1 is off"),
    _sampling_flag("presence_penalty", float, "X", "subtracted from the logits of generated tokens"),
    _sampling_flag("frequency_penalty", float, "X", "the same for each time a token was generated"),
    _sampling_flag("repeat_last_n", int, "N", "penalties look at the last N tokens; -1 is all"),
    _sampling_flag("dry_multiplier", float, "X", "make long repetitions less likely; 0 is off"),
    _sampling_flag("dry_base", float, "X", "how fast that grows with each repeated token"),
    _sampling_flag("dry_allowed_length", int, "N", "repetitions of fewer than N tokens are free"),
    _sampling_flag("dry_penalty_last_n", int, "N", "repetitions of the last N tokens; -1 is all"),
    _sampling_flag("dry_sequence_breakers", list[str], "TEXT", "no repetition reaches across TEXT"),
    _sampling_flag("bad_words", list[str], "TEXT", "never these tokens; can be repeated"),
    _sampling_flag("banned_strings", list[str], "TEXT", "never this text; can be repeated"),
    _sampling_flag("logit_bias", list[str], "ID=X", "add X to a token's logit; can be repeated"),
    _sampling_flag("seed", int, "N", "same seed, same text"),
    _sampling_flag("min_tokens", int, "N", "no end before N tokens"),
    _sampling_flag("stop", list[str], "TEXT", "end before TEXT; can be repeated"),
    _sampling_flag("stop_token_ids", list[int], "ID", "end at this token; can be repeated"),
    Flag(
        "include_stop_str_in_output",
        bool,
        typer.Option("--include-stop", help="keep the stop text in the output", show_default=False),
    ),
    Flag(
        "ignore_eos",
        bool,
        typer.Option("--ignore-eos", help="go on after the model's end token", show_default=False),
    ),
)


def sampling_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, as fields of SamplingParams; UsageError for a value that these refuse."""
    values = {name: value for name, value in given.items() if value not in (None, [])}
    lists = ("stop", "stop_token_ids", "dry_sequence_breakers", "bad_words", "banned_strings")
    values |= {name: tuple(values[name]) for name in lists if name in values}
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
