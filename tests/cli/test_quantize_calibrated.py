"""`headrace quantize --method gptq` on the shipped model: less is lost than by plain rounding."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from invocation import Outcome

from headrace.cli.compression import staged
from headrace.cli.quantize import _goes_on
from headrace.errors import QualityBelowBound
from tiny import convertible_model

FEW = ("--windows", "2", "--window", "256", "--greedy", "0", "--json")


def kl(inside: Callable[..., Outcome], model: Path) -> float:
    outcome = inside("bench", "quality", str(model), "--against", "mini", *FEW)
    assert outcome.code == 0, outcome.stderr
    mean: float = json.loads(outcome.stdout)["kl"]["mean"]
    return mean


def test_a_run_that_fails_says_what_it_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as on a full disk: the same command goes on from it. What lost too much is not gone on with."""
    work = tmp_path / ".out.calibration"
    for error, stays in ((OSError(errno.ENOSPC, "full"), True), (QualityBelowBound("lost"), False)):
        work.mkdir()
        (work / "part").write_bytes(bytes(3_000_000))
        with pytest.raises(type(error)), _goes_on(work):
            raise error
        assert work.is_dir() == stays
        assert ("what was calibrated stays in" in capsys.readouterr().err) == stays
        shutil.rmtree(work, ignore_errors=True)


@pytest.mark.nightly
def test_gptq_loses_a_third_of_rounding_at_the_same_size(
    inside: Callable[..., Outcome], tmp_path: Path
) -> None:
    """0.33 with 16 windows of calibration, measured on a text that the calibration did not see."""
    files = {method: tmp_path / f"{method}.gguf" for method in ("rtn", "gptq")}
    for method, file in files.items():
        flags = ["--quantization", "q4_0", "--method", method, "--windows", "4"]
        outcome = inside("quantize", "mini", str(file), *flags)
        assert outcome.code == 0, outcome.stderr
    assert files["gptq"].stat().st_size == files["rtn"].stat().st_size
    assert kl(inside, files["gptq"]) < 0.5 * kl(inside, files["rtn"])
    assert not list(tmp_path.glob(".*.calibration"))


@pytest.mark.soak
def test_gptq_into_our_own_int4_loses_a_third(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    """0.28 of plain rounding's on a text that the calibration did not see: the gate's."""
    losses = list[float]()
    for method in ("rtn", "gptq"):
        outcome = inside(
            "quantize", "mini", str(tmp_path / method), "--to", "int4", "--method", method, "--json"
        )
        assert outcome.code == 0, outcome.stderr
        losses.append(json.loads(outcome.stdout)["quality"]["kl"]["mean"])
    assert losses[1] <= 0.35 * losses[0]


@pytest.mark.nightly
def test_awq_loses_less_than_rounding(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    """0.7 of it, on a text that the calibration did not see: the gate's."""
    losses = list[float]()
    for method in ("rtn", "awq"):
        flags = ("--to", "q4_0", "--method", method, "--windows", "8", "--json")
        outcome = inside("quantize", "mini", str(tmp_path / f"{method}.gguf"), *flags)
        assert outcome.code == 0, outcome.stderr
        losses.append(json.loads(outcome.stdout)["quality"]["kl"]["mean"])
    assert losses[1] <= 0.85 * losses[0]


def test_awq_is_gated_and_runs(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    model, out = str(convertible_model(tmp_path)), tmp_path / "out"
    command = ["quantize", model, str(out), "--method", "awq", "--windows", "2", "--json"]
    refused = inside(*command, "--to", "int4")
    assert refused.code == 2 and "which int4 rotates" in refused.stderr
    made = inside(*command, "--to", "w4a16", "--threads", "1")
    assert made.code == 0, made.stderr
    assert json.loads((out / "headrace.json").read_text())["made"]["method"] == "awq"
    assert inside("run", str(out), "a", "--max-tokens", "2").code == 0
    command[2] = str(tmp_path / "again")
    assert inside(*command, "--to", "w4a16", "--threads", "2").code == 0
    first, again = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "again"))
    assert first == again, "the same bytes whatever the threads"


def test_our_own_int4_is_gated_and_runs(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    model, out = str(convertible_model(tmp_path)), tmp_path / "out"
    command = ["quantize", model, str(out), "--to", "int4", "--method", "gptq", "--windows", "2", "--json"]
    refused = inside(*command, "--max-kl", "0")
    assert refused.code == 1 and "at most 0.0 are allowed" in refused.stderr
    assert not out.exists() and not list(tmp_path.glob(".*"))
    made = inside(*command)
    assert made.code == 0 and "only headrace reads this folder" in made.stderr
    kl = json.loads(made.stdout)["quality"]["kl"]["mean"]
    record = json.loads((out / "headrace.json").read_text())
    assert record["quality"][0]["kl"]["mean"] == kl and record["made"]["method"] == "gptq"
    assert f"{kl:.5f}" in (out / "README.md").read_text()
    assert inside("run", str(out), "a", "--max-tokens", "2").code == 0


def test_cards_name_the_text_without_its_folder(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    text, out = tmp_path / "of-a-customer" / "chats.txt", tmp_path / "out"
    text.parent.mkdir()
    text.write_text("Of all that was said, little was kept. " * 60)
    model = str(convertible_model(tmp_path))
    flags = ("--to", "int4", "--calibrate", str(text), "--windows", "2", "--json")
    made = inside("quantize", model, str(out), *flags)
    assert made.code == 0, made.stderr
    for file in ("README.md", "headrace.json"):
        written = (out / file).read_text()
        assert "chats.txt" in written and "of-a-customer" not in written


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    said = r"no space left in .*, where out is written"
    with pytest.raises(OSError, match=said) as error, staged(tmp_path / "out") as staging:
        (staging / "half").mkdir(parents=True)
        raise OSError(errno.ENOSPC, "No space left on device")
    assert error.value.errno == errno.ENOSPC and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--quantization", "q8_0", "--method", "gptq"], "q8_0 is not calibrated"),
        (["--to", "q8_0", "--method", "awq"], "q8_0 is not calibrated"),
        (["--to", "q4_0", "--method", "exl"], "use rtn or gptq or awq"),
        (["--to", "q4_0", "--method", "gptq", "--imatrix", "x"], "weighs plain rounding"),
        (["--to", "q4_0", "--save-imatrix", "x"], "needs a calibration"),
        (["--to", "q4_0", "--imatrix", "/nowhere/x"], "/nowhere/x cannot be read"),
        (["--to", "q4_0", "--method", "gptq", "--save-imatrix", "/nowhere/x"], "there is no folder /nowhere"),
        (["--to", "q4_0", "--method", "gptq", "--save-imatrix", __file__, "--force"], "already exists"),
        (["--to", "q4_0", "--bits", "99", "--windows", "1"], "which no type has"),
        (["--to", "q4_0", "--kv-bits", "9", "--windows", "1"], "use --kv-cache-dtype int8"),
        (["--to", "q4_0", "--bits", "4.0", "--windows", "1"], "token table and output included"),
        (["--to", "bf16", "--kv-bits", "2.5", "--windows", "1"], "keys and values have 3, 4 or 8 bits"),
        (["--quantization", "q4_0", "--method", "rtn", "--calibrate", "x"], "rtn reads no text"),
        (["--quantization", "q4_0", "--calibrate", "/nowhere/x.txt"], "/nowhere/x.txt cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(
    inside: Callable[..., Outcome], tmp_path: Path, flags: list[str], message: str
) -> None:
    outcome = inside("quantize", "mini", str(tmp_path / "x.gguf"), *flags)
    assert outcome.code == 2 and message in outcome.stderr


def test_a_text_of_one_token_is_warned_of(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the " * 3000)
    flags = ("--to", "int4", "--calibrate", str(text), "--windows", "2")
    outcome = inside("quantize", str(convertible_model(tmp_path)), str(tmp_path / "out"), *flags)
    assert outcome.code == 0, outcome.stderr
    assert "different tokens among" in outcome.stderr


def test_windows_that_nothing_reads_are_warned_of(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    model = str(convertible_model(tmp_path))
    outcome = inside("quantize", model, str(tmp_path / "out"), "--to", "int8", "--windows", "2")
    assert outcome.code == 0 and "--windows has no effect" in outcome.stderr


def test_w8a8_is_read_back(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    """Codes with a sign, and a config that says that inputs are rounded too."""
    outcome = inside("quantize", "mini", str(tmp_path / "out"), "--to", "w8a8", "--json")
    assert outcome.code == 0, outcome.stderr
    assert 0 < json.loads(outcome.stdout)["quality"]["kl"]["mean"] < 0.001
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert settings["format"] == "int-quantized"
    assert settings["config_groups"]["group_0"]["input_activations"]["strategy"] == "token"


def test_bits_and_the_importance_matrix(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    model, losses = str(convertible_model(tmp_path)), list[float]()
    for flags in (
        ["--method", "gptq", "--calibrate", "builtin", "--save-imatrix", str(tmp_path / "im.gguf")],
        ["--imatrix", str(tmp_path / "im.gguf")],
        ["--bits", "15"],
        [],
    ):
        file = tmp_path / f"{len(losses)}.gguf"
        outcome = inside("quantize", model, str(file), "--to", "q4_0", "--windows", "2", *flags, "--json")
        assert outcome.code == 0, outcome.stderr
        losses.append(json.loads(outcome.stdout)["quality"]["kl"]["mean"])
    assert losses[2] < losses[3]
    assert (tmp_path / "2.gguf").stat().st_size > (tmp_path / "3.gguf").stat().st_size
    assert (tmp_path / "1.gguf").read_bytes() != (tmp_path / "3.gguf").read_bytes()
