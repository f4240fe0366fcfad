"""The config.json of a model, completed as its config class in `transformers` does: other names of fields,
and the class's own defaults of absent ones. scripts/make_config_table.py writes config_classes.json.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec
from msgspec import Struct

from headrace.errors import CorruptFile
from headrace.weights.config_json import Config, refused

Kind = Literal["number", "flag", "text", "list", "object"]
_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "flag": (bool,),
    "text": (str,),
    "list": (list,),
    "object": (dict,),
}
_SIZES = {
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("n_embd", "n_layer", "n_head", "num_heads"),
}
_WANTED = {
    "number": "a number",
    "flag": "true or false",
    "text": "a string",
    "list": "a list",
    "object": "an object",
}


class ClassField(Struct, frozen=True, array_like=True):
    """What a field may hold, and what it is where a file does not have it. Null stands for the default too,
    unless it is `nullable` and means something of its own; of flags it is false then."""

    kind: Kind
    nullable: bool
    default: int | float | bool | str | list[object] | None


class ConfigClass(Struct, frozen=True):
    """A config class: `aliases` are pairs of names that mean the same field."""

    aliases: dict[str, str]
    fields: dict[str, ClassField]


_DECODER = msgspec.json.Decoder(dict[str, ConfigClass])


@cache
def config_classes() -> dict[str, ConfigClass]:
    """By model type; model types of which `transformers` has no class are missing."""
    return _DECODER.decode(files("headrace.models").joinpath("config_classes.json").read_bytes())


def complete(config: Config) -> Config:
    """`config` with every field of its class, under all of its names; without a class it stays as it is.

    Raises CorruptFile for a field of another JSON type than the class's, and for two names of one field that
    hold different values. Completing twice changes nothing.
    """
    known = config_classes().get(str(config.get("model_type")))
    if known is None:
        return config
    complete = _with_aliases(config, known.aliases)
    for name, field in known.fields.items():
        value = complete.get(name)
        if value is None:
            complete[name] = _absent(field, null=name in complete)
        elif not isinstance(value, _TYPES[field.kind]) or (isinstance(value, bool) != (field.kind == "flag")):
            raise refused(name, value, _WANTED[field.kind])
    return _with_aliases(complete, known.aliases)


def absent_sizes(config: Config) -> list[str]:
    """The sizes of a model that `config` leaves to its class: unusual, and most often an incomplete file."""
    known = config_classes().get(str(config.get("model_type")))
    if known is None:
        return []
    given = _with_aliases(config, known.aliases)
    return [name for name in known.fields if name in _SIZES and given.get(name) is None]


def _absent(field: ClassField, *, null: bool) -> object:
    value = None if null and field.nullable else field.default
    return bool(value) if field.kind == "flag" else value


def _with_aliases(config: Config, aliases: dict[str, str]) -> Config:
    """A copy in which both names of a field hold its value."""
    complete = dict(config)
    for pair in aliases.items():
        given = [name for name in pair if name in config]
        values = [config[name] for name in given if config[name] is not None]
        if len(values) == 2 and values[0] != values[1]:
            raise CorruptFile(
                f"config.json has {pair[0]!r} = {values[0]!r:.40} and {pair[1]!r} = {values[1]!r:.40}, which"
                " are two names of one field: remove the wrong one"
            )
        if given:
            complete |= dict.fromkeys(pair, values[0] if values else None)
    return complete
