"""Settings: precedence, typed values, unknown names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headrace.cli.main import build
from headrace.config.profiles import PROFILES
from headrace.config.settings import SETTINGS, Settings, settings_table
from headrace.config.sources import load_settings
from headrace.errors import UsageError
from headrace.loading.options import EngineOptions, engine_options, pace_of


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "headrace.toml").write_text(text)
    return folder


def test_precedence_of_flags_variables_and_files(tmp_path: Path) -> None:
    near = write(tmp_path / "near", "port = 3\nthreads = 3\nmax_num_seqs = 3\n")
    far = write(tmp_path / "far", "port = 4\nthreads = 4\nmax_num_seqs = 4\nmax_batch_tokens = 4\n")
    settings = load_settings(
        {"port": "1", "threads": None},
        environ={"HEADRACE_PORT": "2", "HEADRACE_THREADS": "2"},
        folders=[near, far],
    )
    assert (settings.port, settings.threads, settings.max_num_seqs, settings.max_batch_tokens) == (1, 2, 3, 4)
    assert settings.host == "127.0.0.1"


def test_every_setting_parses_from_text_as_from_toml(tmp_path: Path) -> None:
    text = {
        "HEADRACE_KV_CACHE_MEMORY": "1.5GiB",
        "HEADRACE_OFFLINE": "yes",
        "HEADRACE_API_KEY": "a, b",
        "HEADRACE_CACHE_DIR": "/x",
        "HEADRACE_SHUTDOWN_TIMEOUT": "2.5",
        "HEADRACE_QUANTIZATION": "int4",
    }
    folder = write(
        tmp_path,
        'kv_cache_memory = 1610612736\noffline = true\napi_key = ["a", "b"]\ncache_dir = "/x"\n'
        'shutdown_timeout = 2.5\nquantization = "int4"\n',
    )
    from_text = load_settings(environ=text, folders=[])
    assert from_text == load_settings(environ={}, folders=[folder])
    assert from_text.kv_cache_memory == 3 * 2**29
    assert from_text.api_key == ("a", "b")
    assert from_text.cache_dir == Path("/x")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"HEADRACE_PROT": "1"}, "unknown environment variable HEADRACE_PROT: did you mean 'HEADRACE_PORT'"),
        ({"HEADRACE_PORT": "x"}, "HEADRACE_PORT is 'x', which is not an integer from 0 to 65,535"),
        ({"HEADRACE_PORT": "70000"}, "HEADRACE_PORT is '70000'"),
        ({"HEADRACE_QUANTIZATION": "int3"}, "one of auto, keep, bf16, int8, int4"),
        ({"HEADRACE_OFFLINE": "maybe"}, "true or false"),
        ({"HEADRACE_KV_CACHE_MEMORY": "lots"}, "a size such as 4GiB"),
        ({"HEADRACE_SHUTDOWN_TIMEOUT": "nan"}, "a number of seconds"),
    ],
)
def test_invalid_variables_are_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(environ=environ, folders=[])
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown setting 'prot': did you mean 'port'?"),
        ("zzz = 1", "valid are quantization, "),
        ("port = '", "cannot be read"),
        ("port = 1.5", "port is 1.5, which is not an integer"),
        ("port = true", "which is not an integer"),
        ("[port]\nx = 1", "which is not an integer"),
    ],
)
def test_invalid_file_entries_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(environ={}, folders=[write(tmp_path, text)])
    assert message in caught.value.message
    assert "headrace.toml" in caught.value.message


def test_keys_are_not_repeated_in_messages() -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(environ={"HEADRACE_API_KEY": "secret,,x"}, folders=[])
    assert "secret" not in caught.value.message


def test_variables_of_tests_and_kernels_are_known() -> None:
    load_settings(environ={"HEADRACE_ISA": "avx2", "HEADRACE_SHARED_DATA": "/x", "OTHER": "1"}, folders=[])


def test_every_setting_is_described_and_is_a_flag_of_a_command() -> None:
    assert list(SETTINGS) == list(Settings.__struct_fields__)
    serve = get_command(build(["serve"])).commands["serve"]  # type: ignore[attr-defined]
    flags = {flag for parameter in serve.params for flag in parameter.opts}
    for setting in SETTINGS.values():
        assert setting.help
        assert {setting.flag, *setting.aliases} <= flags
        assert setting.scopes[0] == "server"
        assert f"`{setting.variable}` | `{setting.name}` |" in settings_table()


def test_what_a_model_has_of_its_own_is_an_engine_option() -> None:
    own = {name for name, setting in SETTINGS.items() if "model" in setting.scopes}
    others = {"keep_alive", "override_generation_config", "default_chat_template_kwargs", "adapters"}
    assert own - others < set(EngineOptions.__struct_fields__)


def test_the_flags_of_other_servers() -> None:
    words = ["--ctx-size", "64", "--max-num-batched-tokens", "128", "--dtype", "int8", "--json"]
    shown = CliRunner().invoke(build(["show"]), ["show", *words])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["plan"]["context"] == 64


def test_a_profile_sets_what_is_not_given() -> None:
    chat = load_settings({"profile": "chat", "max_turn_ms": "20"}, environ={}, folders=[])
    assert (chat.slo, chat.max_turn_ms) == ({"ttft_ms": 500.0, "tpot_ms": 50.0}, 20.0)
    batch = load_settings({}, environ={"HEADRACE_PROFILE": "batch"}, folders=[])
    assert (batch.slo, batch.max_turn_ms, batch.max_num_seqs) == (None, 200.0, 64)
    for profile in PROFILES:
        engine_options(load_settings({"profile": profile}, environ={}, folders=[]))


@pytest.mark.parametrize("text", ["ttft_ms=200,tpot_ms=50", '{"ttft_ms": 200, "tpot_ms": 50}'])
def test_targets_are_read(text: str) -> None:
    settings = load_settings({"slo": text}, environ={}, folders=[])
    assert settings.slo == {"ttft_ms": 200.0, "tpot_ms": 50.0}
    pace = pace_of(engine_options(settings))
    assert (pace.ttft_s, pace.tpot_s, pace.standard.name) == (0.2, 0.05, "INTERACTIVE")


@pytest.mark.parametrize("text", ["", "fast", "ttft_ms", "ttft_ms=0", "ttft=5", "ttft_ms=nan", "{}", "{"])
def test_targets_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="slo"):
        load_settings({"slo": text}, environ={}, folders=[])


@pytest.mark.parametrize(("name", "value"), [("share", "0"), ("max_turn_ms", "nan"), ("share", "many")])
def test_numbers_have_bounds(name: str, value: str) -> None:
    with pytest.raises(UsageError, match="number from"):
        load_settings({name: value}, environ={}, folders=[])


def test_a_journals_folder_alone_keeps_its_table(tmp_path: Path) -> None:
    """Else what the table encrypts would be written in the clear."""
    folder = write(tmp_path, '[journal]\nfolder = "here"\nkey_file = "key"\nfsync = "power"')
    rest = {"key_file": "key", "fsync": "power"}
    flag = load_settings({"journal": "there"}, environ={}, folders=[folder])
    assert flag.journal == {"folder": "there", **rest}
    variable = load_settings(environ={"HEADRACE_JOURNAL": "there"}, folders=[folder])
    assert variable.journal == flag.journal
    table = load_settings({"journal": '{"folder": "there", "fsync": "off"}'}, environ={}, folders=[folder])
    assert table.journal == {"folder": "there", "fsync": "off"}
