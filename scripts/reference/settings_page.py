"""The page of settings: `headrace.config.settings.SETTINGS` as tables, one for each scope."""

from __future__ import annotations

from page_text import code, generated, sentence, table

from headrace.cli.flags import MODEL_SETTINGS, SERVER_SETTINGS
from headrace.config.settings import OTHER_VARIABLES, SETTINGS, Setting
from headrace.workers.model_spec import OF_A_MODEL

INTRODUCTION = """Every setting can be given in three ways. A flag wins over the environment variable, and
the variable over `headrace.toml`. The file is read from the current folder, then from
`~/.config/headrace/`.

```toml title="headrace.toml"
port = 9000
weights = "int8"
memory = "12GiB"
```

A name that does not exist is an error that suggests the nearest one. A value that cannot be read is an
error that says what it should be. Sizes are bytes or `512M`, `4GiB`. Restart the server, or send it
`SIGHUP`, after a change."""

MODELS = """`[models.NAME]` in `headrace.toml` describes one model to serve. It takes `path`, `aliases`, and
the model settings that are marked with "per model" above. See [Serve several
models](../guides/serving.md)."""


def page() -> str:
    """The whole page."""
    return generated(
        "Settings",
        "src/headrace/config/settings.py",
        INTRODUCTION,
        "## Model settings",
        "They say how a model is loaded and run. `headrace run`, `serve`, `show` and `bench` take them.",
        _table(MODEL_SETTINGS),
        "## Server settings",
        "They belong to `headrace serve`; `ps`, `stop` and `keys` take those that they need.",
        _table(SERVER_SETTINGS),
        "## Tables of models",
        MODELS,
        "## Other environment variables",
        table(
            ["variable", "meaning"], [(code(name), sentence(text)) for name, text in OTHER_VARIABLES.items()]
        ),
    )


def _table(names: tuple[str, ...]) -> str:
    return table(["setting", "type", "default", "what it does"], [_row(SETTINGS[name]) for name in names])


def _row(setting: Setting) -> tuple[str, ...]:
    ways = f"{code(setting.flag)}<br>{code(setting.variable)}<br>{code(setting.name)}"
    values = " ".join(code(choice) for choice in setting.choices) or setting.type_name
    scope = "<br>*per model*" if setting.name in OF_A_MODEL else ""
    return ways, values, setting.shown_default, sentence(setting.help) + "." + scope
