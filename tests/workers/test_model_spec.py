"""The models of a server: from the command line, from `[models]`, or the bundled one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.settings import Settings
from headrace.config.sources import load_settings
from headrace.errors import UsageError
from headrace.workers.model_spec import ModelSpec, read_specs

TABLE = """
keep_alive = 5
[models]
"Qwen/Qwen3-0.6B" = {}
other = "/b/folder"
[models.small]
path = "./a-folder"
aliases = ["gpt-4o-mini", "s"]
max_model_len = 1024
quantization = "int4"
keep_alive = "never"
"""


def specs(folder: Path, text: str, *models: str) -> list[ModelSpec]:
    (folder / "headrace.toml").write_text(text)
    settings = load_settings({"max_num_seqs": "8"}, environ={}, folders=[folder])
    return read_specs(models, settings, folders=[folder])


def test_the_bundled_models_are_the_default(tmp_path: Path) -> None:
    spec, *others = read_specs([], Settings(max_model_len=600), folders=[tmp_path])
    assert (spec.name, spec.model, spec.keep_alive_s, spec.options.max_model_len) == ("mini", "mini", -1, 600)
    # What is set for the default model may exceed the limits of the others.
    assert [other.name for other in others] == ["embed", "nano", "novelette", "tagger"]
    assert {other.options.max_model_len for other in others} == {None}


def test_models_of_the_command_line_come_first_and_by_their_last_part(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    found = specs(tmp_path, '[models]\nother = "/b"\n', str(tmp_path / "mine"), "org/name")
    assert [spec.name for spec in found] == ["mine", "org/name", "other"]


def test_a_models_own_settings_win(tmp_path: Path) -> None:
    found = {spec.name: spec for spec in specs(tmp_path, TABLE)}
    small, other = found["small"], found["other"]
    assert (small.model, small.aliases, small.keep_alive_s) == ("./a-folder", ("gpt-4o-mini", "s"), -1)
    assert (small.options.max_model_len, small.options.quantization, small.options.max_num_seqs) == (
        1024,
        "int4",
        8,
    )
    assert (other.model, other.options.max_model_len, other.keep_alive_s) == ("/b/folder", None, 5)
    assert found["Qwen/Qwen3-0.6B"].model == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = 3", "models is a table"),
        ("[models]\na = 3", "models.a is neither a path nor a table"),
        ("[models.a]\nport = 3", "models.a: unknown 'port'"),
        ('[models.a]\nmodel = "mini"', "'model' is a model of a provider, and needs 'provider'"),
        ("[models.a]\nmax_model_length = 3", "did you mean 'max_model_len'"),
        ("[models.a]\nmax_model_len = 0", "models.a.max_model_len is 0, which is not an integer"),
        ("[models.a]\npath = 3", "path is a text"),
        ('[models.a]\naliases = "b"', "aliases is a list of texts"),
        ('[models.a]\n[models.b]\naliases = ["a"]', "two models are named 'a'"),
        ('[models.a]\nkeep_alive = "long"', "a number of seconds, or never"),
    ],
)
def test_invalid_tables_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        specs(tmp_path, text)
    assert message in caught.value.message
