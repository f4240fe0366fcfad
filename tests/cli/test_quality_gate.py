"""The gate: commands measure the smaller models that they write, and loading heeds what was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from invocation import Outcome
from msgspec.structs import replace

from headrace.cli.compression import staged
from headrace.errors import QualityBelowBound
from headrace.loading.loader import load_model
from headrace.loading.model_record import Form, read_record, record_file
from headrace.loading.options import EngineOptions
from tiny import convertible_model, tiny_model

FAST = ("--windows", "2", "--window", "32", "--greedy", "0")


def listed(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.name != "cache")


@pytest.mark.parametrize("name", ["small.gguf", "small"])
def test_what_is_written_was_measured(inside: Callable[..., Outcome], tmp_path: Path, name: str) -> None:
    model, out = convertible_model(tmp_path), tmp_path / name
    kind = "q8_0" if name.endswith("gguf") else "int8"
    outcome = inside("quantize", str(model), str(out), "--quantization", kind, "--json")
    assert outcome.code == 0, outcome.stderr
    found = json.loads(outcome.stdout)["quality"]
    assert found["kl"].keys() == {"mean", "median", "p999"} and 0 < found["kl"]["mean"] < 0.1
    record = read_record(out)
    stored = record.measured(Form())
    assert stored is not None and stored.kl.mean == found["kl"]["mean"]
    assert record.made == {"from": model.name, "weights": kind, "method": "rtn"}
    card = out / "README.md" if out.is_dir() else tmp_path / "small.gguf.md"
    assert card.read_text().count("## Made by headrace") == 1
    assert f"{stored.kl.mean:.5f}" in card.read_text()
    load_model(str(out), EngineOptions(quality={"max_kl": found["kl"]["mean"] * 1.01})).close()
    with pytest.raises(QualityBelowBound, match=r"allows .*e-"):
        load_model(str(out), EngineOptions(quality={"max_kl": 1e-12}))


@pytest.mark.parametrize("name", ["small.gguf", "small"])
def test_nothing_is_written_above_the_bound(
    inside: Callable[..., Outcome], tmp_path: Path, name: str
) -> None:
    model, out = convertible_model(tmp_path), tmp_path / name
    before = listed(tmp_path)
    kind = "q8_0" if name.endswith("gguf") else "int8"
    command = ["quantize", str(model), str(out), "--quantization", kind, "--max-kl"]
    outcome = inside(*command, "1e-12")
    assert outcome.code == 1 and "at most 1e-12 are allowed" in outcome.stderr
    assert listed(tmp_path) == before
    assert inside(*command, "nan").code == 2 and inside(*command, "inf").code == 2
    assert listed(tmp_path) == before
    out.write_text("a file of mine") if out.suffix else (out.mkdir(), (out / "mine.txt").write_text("mine"))
    kept = out if out.suffix else out / "mine.txt"
    if not out.suffix:
        outcome = inside(*command, "1", "--force")
        assert outcome.code == 2 and "a folder without a model" in outcome.stderr and kept.exists()
        outcome = inside("quantize", str(model), str(tmp_path), "--quantization", kind, "--force")
        assert outcome.code == 2 and model.exists()
    else:  # an older model stays until the new one has passed
        assert inside(*command, "1e-12", "--force").code == 1
        assert kept.read_text() == "a file of mine"


def test_loading_heeds_what_was_measured(
    inside: Callable[..., Outcome], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, cache = str(tiny_model(tmp_path)), tmp_path / "cache"
    coarse = EngineOptions(quantization="int4", cache_dir=cache)
    load_model(model, coarse).close()
    assert "loses was never measured" in caplog.text and "headrace bench quality" in caplog.text
    bounded = EngineOptions(quantization="int4", cache_dir=cache, quality={"max_kl": 10.0})
    with pytest.raises(QualityBelowBound, match="nobody has measured"):
        load_model(model, bounded)
    load_model(model, EngineOptions(cache_dir=cache, quality={"max_kl": 0.0})).close()  # as stored: no loss
    command = ["bench", "quality", model, "--quantization", "int4", "--cache-dir", str(cache), *FAST]
    page = tmp_path / "page.html"
    outcome = inside(*command, "--html", str(page), "--json")
    assert outcome.code == 0, outcome.stderr
    keys = list(json.loads(outcome.stdout))
    assert keys[:5] == ["kl", "top1", "perplexity", "reference_perplexity", "tokens"]
    text = page.read_text()
    assert text.count("<svg") == 2 and text.count('class="now"') == 2 and "reference" in text
    caplog.clear()
    load_model(model, bounded).close()
    load_model(model, coarse).close()
    assert "never measured" not in caplog.text
    mean = json.loads(outcome.stdout)["kl"]["mean"]
    for kv in ("auto", "int4"):  # another form was not measured
        options = EngineOptions(
            quantization="int4", cache_dir=cache, kv_cache_dtype=kv, quality={"max_kl": mean / 2}
        )
        with pytest.raises(QualityBelowBound, match="mean KL" if kv == "auto" else "nobody has measured"):
            load_model(model, options)


def test_3_bits_of_keys_and_values_show_their_price(
    inside: Callable[..., Outcome], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, cache = str(tiny_model(tmp_path, "qwen3")), tmp_path / "cache"
    options = EngineOptions(kv_cache_dtype="int3", cache_dir=cache)
    load_model(model, options).close()
    assert "int3 loses was never measured" in caplog.text and "3 bits are not free" in caplog.text
    command = ["bench", "quality", model, "--kv-cache-dtype", "int3", "--cache-dir", str(cache), *FAST]
    outcome = inside(*command, "--json")
    assert outcome.code == 0, outcome.stderr
    mean = json.loads(outcome.stdout)["kl"]["mean"]
    caplog.clear()
    load_model(model, options).close()
    assert f"has a mean KL divergence of {mean:.5f} nats" in caplog.text
    load_model(model, replace(options, kv_cache_dtype="int4")).close()  # another form
    assert caplog.text.count("KL divergence") == 1 and "never measured" in caplog.text


def test_calibrated_bits_of_keys_and_values_are_gated(
    inside: Callable[..., Outcome], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, out = str(tiny_model(tmp_path, "gemma2")), tmp_path / "out"
    flags = ["--to", "bf16", "--kv-bits", "3.5", "--windows", "2", "--json"]
    outcome = inside("quantize", model, str(out), *flags)
    assert outcome.code == 0, outcome.stderr
    said = json.loads(outcome.stdout)
    bits, mixed = said["kv"]["bits"], said["kv"]["quality"]["kl"]["mean"]
    assert sum(map(sum, bits)) <= 3.5 * 2 * len(bits) and 3 in bits[0] + bits[1]
    record, stored = read_record(out), said["quality"]["kl"]["mean"]
    of_mixed = record.measured(Form("keep", "mixed"))
    assert of_mixed is not None and of_mixed.kl.mean == mixed > stored
    assert f"{mixed:.5f}" in (out / "README.md").read_text()
    bound = (stored + mixed) / 2
    refused = inside("quantize", model, str(tmp_path / "other"), *flags, "--max-kl", str(bound))
    assert refused.code == 1 and not (tmp_path / "other").exists()
    caplog.clear()
    load_model(str(out), EngineOptions(kv_cache_dtype="mixed")).close()
    assert f"has a mean KL divergence of {mixed:.5f} nats" in caplog.text
    with pytest.raises(QualityBelowBound, match="mixed"):
        load_model(str(out), EngineOptions(kv_cache_dtype="mixed", quality={"max_kl": bound}))


def test_records_of_other_weights_and_broken_ones(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    file = record_file(model)
    file.write_text('{"weight_bytes": 3, "quality": []}')
    assert not read_record(model).weight_bytes
    for broken in (
        "{",
        "[]",
        '{"quality": [{"kl": {"mean": "x"}}]}',
        "\ud800".encode("utf-8", "surrogatepass"),
    ):
        file.write_bytes(broken if isinstance(broken, bytes) else broken.encode())
        with pytest.raises(Exception, match=r"headrace\.json"):
            read_record(model)


def test_settings_name_the_bound(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = inside("run", str(tiny_model(tmp_path)), "a", "--quantization", "int4", "--quality", "max_kl=1")
    assert outcome.code == 1 and "nobody has measured" in outcome.stderr
    for wrong in ("1", "max_kl=nan", "kl=1", "max_kl="):
        outcome = inside("run", "mini", "a", "--quality", wrong)
        assert (outcome.code == 2 and "max_kl=" in outcome.stderr) or "number" in outcome.stderr


def test_what_killed_runs_have_left_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone, mine = 2**31 - 5, os.getpid()
    left = [f".small.{gone}.staged", f".small.{gone}.staged.healed", f".small.{mine}.staged"]
    for name in left:
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").touch()
    (tmp_path / f".small.{gone}.staged.gguf").touch()
    (tmp_path / f"..small.{gone}.staged.{gone}.partial").mkdir()  # on its way to be staged
    others = [f".other.{gone}.staged", ".small.1.staged", ".small.x.staged"]
    for name in others:
        (tmp_path / name).mkdir()
    with staged(tmp_path / "small") as staging:
        assert not staging.exists()
        staging.mkdir()
        (staging / "new").touch()
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([*others, "small"])
    assert [one.name for one in (tmp_path / "small").iterdir()] == ["new"]
    assert "a run that was killed has left it" in capsys.readouterr().err
