"""The page of settings: the table of `headrace.config` by scope."""

from __future__ import annotations

from collections.abc import Mapping

from page_text import code, generated, sentence, table

from headrace.config.providers import PROVIDER_SETTINGS, REMOTE_MODEL_SETTINGS
from headrace.config.setting import Setting
from headrace.config.settings import MODEL_SETTINGS, SETTINGS
from headrace.config.sources import OTHER_VARIABLES

INTRODUCTION = """Every setting can be given in three ways. A flag wins over the environment variable, and
the variable over `headrace.toml`. The file is read from the current folder, then from
`~/.config/headrace/`.

```toml title="headrace.toml"
port = 9000
quantization = "int8"
memory = "12GiB"
```

A name that does not exist is an error that suggests the nearest one. A value that cannot be read is an
error that says what it should be. Sizes are bytes or `512M`, `4GiB`. Restart the server, or send it
`SIGHUP`, after a change."""

MODELS = """`[models.NAME]` in `headrace.toml` describes one model to serve. It takes `path`, `aliases`, and
the settings that are marked *per model* above. Those marked *per request* can also be sent with a request.
See [Serve several models](../guides/serving.md)."""
REMOTE = """An entry of `[models]` with `provider` or `targets` is answered elsewhere. See
[Remote models and failover](../guides/remote-models.md)."""
SCOPES = {"model": "*per model*", "request": "*per request*"}


def page() -> str:
    """The whole page."""
    server = tuple(name for name in SETTINGS if name not in MODEL_SETTINGS)
    variables = [(code(name), sentence(text)) for name, text in OTHER_VARIABLES.items()]
    return generated(
        "Settings",
        "src/headrace/config/",
        INTRODUCTION,
        "## Model settings",
        "How a model is loaded and run. `headrace run`, `serve`, `show` and `bench` take them, and most are\n"
        "keywords of [`LLM`](python.md).",
        _table(MODEL_SETTINGS),
        "## Server settings",
        "They belong to `headrace serve`; `ps`, `stop` and `keys` take those that they need.",
        _table(server),
        "## Tables of models",
        MODELS,
        "## Tables of remote models",
        REMOTE,
        "### `[providers.NAME]`",
        _keys(PROVIDER_SETTINGS),
        "### `[models.NAME]` of a remote model",
        _keys(REMOTE_MODEL_SETTINGS),
        "## Other environment variables",
        table(["variable", "meaning"], variables),
    )


def _table(names: tuple[str, ...]) -> str:
    return table(["setting", "type", "default", "what it does"], [_row(SETTINGS[name]) for name in names])


def _keys(settings: Mapping[str, Setting]) -> str:
    """The keys of a table of headrace.toml."""
    rows = [
        (code(one.name), one.values.shown.replace("|", ", "), one.shown_default, sentence(one.help) + ".")
        for one in settings.values()
    ]
    return table(["key", "type", "default", "what it does"], rows)


def _row(setting: Setting) -> tuple[str, ...]:
    names = (setting.flag, *setting.aliases, setting.variable, setting.name)
    shown = setting.values.shown
    values = " ".join(map(code, shown.split("|"))) if "|" in shown else shown
    scopes = ", ".join(text for scope, text in SCOPES.items() if scope in setting.scopes)
    ends = f"<br>{scopes}" if scopes else ""
    return "<br>".join(map(code, names)), values, setting.shown_default, sentence(setting.help) + "." + ends
