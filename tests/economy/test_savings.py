"""The stacked bill: its workload, and the command with models that run."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.economy.savings.engine_run import StackRun
from headrace.economy.savings.outcomes import is_right
from headrace.economy.savings.playing import PlayedRequest, busy_seconds
from headrace.economy.savings.traffic import (
    LABEL,
    SQL,
    RecordedRequest,
    made_traffic,
    read_traffic,
    write_traffic,
)
from headrace.errors import UsageError


def test_the_generator_makes_the_same_traffic_each_time(tmp_path: Path) -> None:
    made = made_traffic(200, 2.0, 30)
    assert made == made_traffic(200, 2.0, 30)
    assert made != made_traffic(200, 2.0, 30, seed=1)
    traffic = [one for one in made if not one.history]
    assert [one.kind for one in made if one.history] == [SQL] * 30 + [LABEL] * 30
    assert len(traffic) == 200
    assert traffic[-1].at_s == pytest.approx(100, rel=0.3)
    assert 0.15 < 1 - len({one.prompt for one in traffic}) / 200 < 0.6
    write_traffic(made, tmp_path / "traffic.jsonl")
    assert read_traffic(tmp_path / "traffic.jsonl") == made


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no traffic"),
        ('{"at_s": 0, "kind": "sql", "prompt": "a", "other": 1}', "line 1: .*other"),
        ('{"at_s": 0, "kind": "sql", "prompt": "a", "history": true}', "has no traffic"),
        ('{"at_s": 1, "kind": "a", "prompt": "a"}\n{"at_s": 0, "kind": "a", "prompt": "a"}', "must .*ascend"),
    ],
)
def test_a_file_without_traffic_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "traffic.jsonl").write_text(content)
    with pytest.raises(UsageError, match=message):
        read_traffic(tmp_path / "traffic.jsonl")


def test_answers_are_compared_without_case_and_quotes_of_names() -> None:
    asked = RecordedRequest(at_s=0, kind=SQL, prompt="", answer="SELECT \"a\" FROM t WHERE b = 'X'")
    assert is_right(asked, "select a  from t where b = 'x'")
    assert not is_right(asked, "SELECT b FROM t WHERE b = 'X'")


def test_busy_time_counts_no_moment_twice() -> None:
    spans = [(0.0, 1.0), (0.5, 0.7), (0.9, 2.0), (3.0, 3.5)]
    assert busy_seconds([PlayedRequest(begun_s=a, done_s=b) for a, b in spans]) == pytest.approx(2.5)
    assert StackRun(added="", measured_nano=200, simulated_nano=190).error == pytest.approx(-0.05)
