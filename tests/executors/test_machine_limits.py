"""Machine limits: measured once, cached, and measured again if the file is invalid."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import _native
from headrace.executors import machine_limits as limits
from headrace.executors.machine_limits import machine_limits


def test_measured_once_and_kept(tmp_path: Path) -> None:
    first = machine_limits(1, tmp_path / "cache")
    assert min(first.read_bytes_per_s, first.f32_per_s, first.bf16_per_s, first.int8_per_s) > 1e6
    assert first.isa == _native.isa() and first.threads == 1
    assert machine_limits(1, tmp_path / "cache") == first
    [file] = (tmp_path / "cache").iterdir()
    assert machine_limits(1, tmp_path / "cache", measure=True) != first
    for content in ("", "{}", "[1]", file.read_text()[:-9]):
        file.write_text(content)
        assert machine_limits(1, tmp_path / "cache").int8_per_s > 1e6


def test_an_unwritable_cache_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert machine_limits(1, tmp_path / "file").threads == 1
    assert machine_limits(1, None).threads == 1


def test_another_processor_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_limits(1, tmp_path)
    monkeypatch.setattr(limits, "cpu_name", lambda: "another")
    assert machine_limits(1, tmp_path).cpu == "another"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("rounds", "repeats"), [(0, 1), (1, 0), (-1, 1)])
def test_peaks_need_rounds(rounds: int, repeats: int) -> None:
    with pytest.raises(ValueError, match="at least one round"):
        _native.compute_peaks(_native.Pool(1), rounds, repeats)
