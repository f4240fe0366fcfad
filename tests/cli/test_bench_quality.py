"""`headrace bench quality` as a command: table, JSON, plot, a bound that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from invocation import Outcome

from tiny import tiny_model

FAST = ("--windows", "2", "--window", "32", "--greedy", "8")


def test_the_table_the_document_and_the_plot(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    model, picture = str(tiny_model(tmp_path)), tmp_path / "kl.png"
    command = ["bench", "quality", model, "--quantization", "int8", *FAST]
    table = inside(*command, "--png", str(picture))
    assert table.code == 0, table.stderr
    assert "KL mean" in table.stdout and "int8" in table.stdout and "greedy differs after" in table.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    document = json.loads(inside(*command, "--json").stdout)
    assert document["kl"].keys() >= {"mean", "median", "p999"}
    assert 0 < document["kl"]["mean"] < 0.1
    assert document.keys() >= {"top1", "perplexity", "reference_perplexity", "tokens"}
    assert document["tokens"] == 2 * 31


def test_a_divergence_above_the_bound_fails(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    model = str(tiny_model(tmp_path))
    command = ["bench", "quality", model, "--quantization", "int4", *FAST]
    failed = inside(*command, "--max-kl", "0.0000001")
    assert failed.code == 1 and "at most 1e-07 are allowed" in failed.stderr and "KL mean" in failed.stdout
    assert inside(*command, "--max-kl", "10").code == 0


def test_a_text_that_cannot_be_read_is_named(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    binary = tmp_path / "text.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    outcome = inside("bench", "quality", str(tiny_model(tmp_path)), "--text", str(binary))
    assert outcome.code == 2 and "text.bin is not UTF-8 text" in outcome.stderr


def test_an_encoder_is_refused(inside: Callable[..., Outcome]) -> None:
    outcome = inside("bench", "quality", "tagger", *FAST)
    assert outcome.code == 1 and "makes vectors of texts" in outcome.stderr
