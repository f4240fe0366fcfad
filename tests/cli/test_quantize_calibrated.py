"""`headrace quantize --method gptq` on the shipped model: less is lost than by plain rounding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from invocation import Outcome

FEW = ("--windows", "2", "--window", "256", "--greedy", "0", "--json")


def kl(inside: Callable[..., Outcome], model: Path) -> float:
    outcome = inside("bench", "quality", str(model), "--against", "mini", *FEW)
    assert outcome.code == 0, outcome.stderr
    mean: float = json.loads(outcome.stdout)["kl"]["mean"]
    return mean


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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--quantization", "q8_0", "--method", "gptq"], "q8_0 is not calibrated"),
        (["--quantization", "q4_0", "--method", "awq"], "use rtn or gptq"),
        (["--quantization", "q4_0", "--method", "rtn", "--calibrate", "x"], "rtn reads no text"),
        (["--quantization", "q4_0", "--calibrate", "/nowhere/x.txt"], "/nowhere/x.txt cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(
    inside: Callable[..., Outcome], tmp_path: Path, flags: list[str], message: str
) -> None:
    outcome = inside("quantize", "mini", str(tmp_path / "x.gguf"), *flags)
    assert outcome.code == 2 and message in outcome.stderr
