"""Nodes or an API: the simulated node, the fewest nodes, break-even, and the mix of both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.serve.trace import TraceRequest, read_trace
from headrace.economy.crossover import (
    Objectives,
    Traffic,
    api_usd_per_hour,
    crossover,
    largest_share,
    traffic_of,
)
from headrace.economy.crossover_plot import plot_crossover
from headrace.economy.node import NodeSpeed, node_speed, serve
from headrace.errors import UsageError

SPEED = node_speed(prefill_tps=20_000, decode_tps=4_000, single_tps=100, max_rows=128)
LOOSE = Objectives(1.0, 0.1, 0.95)


def steps(
    speed: NodeSpeed, at_s: list[float], prompts: list[int], outputs: list[int]
) -> tuple[list[float], list[float]]:
    """The same node step by step: first tokens and ends. A step reads a chunk of one prompt and gives every
    row a token."""
    now, left, queue, following = 0.0, 0.0, list[int](), 0
    rows: dict[int, float] = {}
    first, done = [0.0] * len(at_s), [0.0] * len(at_s)
    while following < len(at_s) or queue or rows:
        while following < len(at_s) and at_s[following] <= now:
            queue.append(following)
            left = prompts[following] if len(queue) == 1 else left
            following += 1
        if not queue and not rows:
            now = at_s[following]
            continue
        reading = bool(queue) and len(rows) < speed.max_rows
        now += speed.step_s(len(rows), speed.chunk_tokens if reading else 0)
        for one in list(rows):
            rows[one] -= 1
            if rows[one] <= 0:
                done[one] = now
                del rows[one]
        if reading:
            left -= speed.chunk_tokens
            if left <= 0:
                one = queue.pop(0)
                first[one] = done[one] = now
                if outputs[one] > 1:
                    rows[one] = outputs[one] - 1
                left = prompts[queue[0]] if queue else 0.0
    return first, done


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 6), st.integers(1, 60)), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_the_node_in_closed_form_is_the_node_step_by_step(
    drawn: list[tuple[float, int, int]], rows: int
) -> None:
    speed = NodeSpeed(base_s=0.004, per_row_s=0.001, per_prompt_token_s=2e-5, max_rows=rows)
    drawn = sorted(drawn)
    at_s = [at for at, _, _ in drawn]
    prompts, outputs = [512 * count for _, count, _ in drawn], [count for _, _, count in drawn]
    served = serve(speed, np.array(at_s), np.array(prompts), np.array(outputs))
    first, done = steps(speed, at_s, prompts, outputs)
    # Real events wait for the end of a step: at most one for each event that comes before.
    slack = 3 * len(drawn) * speed.step_s(rows, 512)
    ends = served.ttft_s + np.array(at_s) + served.tpot_s * np.maximum(1, np.array(outputs) - 1)
    assert np.all(np.abs(served.ttft_s + np.array(at_s) - first) <= slack)
    assert np.all(np.abs(ends - done) <= slack)


def test_one_request_alone_is_as_fast_as_was_measured() -> None:
    served = serve(SPEED, np.array([5.0]), np.array([20_000]), np.array([101]))
    assert served.ttft_s[0] == pytest.approx(1.0)
    assert served.tpot_s[0] == pytest.approx(0.01)
    assert served.busy_s == pytest.approx(2.0)


def test_a_full_node_is_as_fast_as_was_measured() -> None:
    served = serve(SPEED, np.zeros(128), np.ones(128, int), np.full(128, 100_000))
    assert 1 / served.tpot_s[-1] * 128 == pytest.approx(4_000, rel=0.01)


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefill_tps": 1e3, "decode_tps": 4_000, "single_tps": 10, "max_rows": 4},
        {"prefill_tps": 1e9, "decode_tps": 400, "single_tps": 100, "max_rows": 4},
    ],
)
def test_speeds_that_contradict_each_other(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        node_speed(**wrong)


def even(count: int = 600, every_s: float = 0.5) -> Traffic:
    return traffic_of([TraceRequest(place * every_s, 1_000, 200) for place in range(count)])


def test_costs_are_what_they_are_made_of() -> None:
    traffic = even()
    api = api_usd_per_hour(traffic, 1.0, 5.0)
    hours = traffic.duration_s / 3600
    assert api == pytest.approx(600 * (1_000 * 1.0 + 200 * 5.0) / 1e6 / hours)
    found = crossover(traffic, SPEED, LOOSE, node_usd=2.0, api_usd=api)
    millions = traffic.tokens_per_hour / 1e6
    for point in found.points:
        assert point.nodes == max(1, -(-point.factor // found.node_share))
        assert point.own_usd == pytest.approx(point.nodes * 2.0 / (point.factor * millions))
        assert point.api_usd == pytest.approx(api / millions)
        assert point.hybrid_usd <= min(point.own_usd, point.api_usd) * (1 + 1e-9)
        assert 0 <= point.hybrid_api_share <= 1 and 0 < point.utilization <= 1.001
    assert found.break_even_factor == pytest.approx(2.0 / api)
    at = crossover(traffic, SPEED, LOOSE, node_usd=2.0, api_usd=api, factors=[2.0 / api]).points[0]
    assert at.own_usd == pytest.approx(at.api_usd)


def test_dearer_by_as_much_as_it_is_emptier() -> None:
    """At a tenth of the utilization of break-even a node costs ten times as much as the API: by
    arithmetic."""
    traffic = even()
    found = crossover(traffic, SPEED, LOOSE, node_usd=2.0, api_usd=20.0, factors=[0.01])
    point = found.points[0]
    assert found.break_even_factor == pytest.approx(0.1)
    assert point.utilization == pytest.approx((found.break_even_utilization or 0) / 10)
    assert point.own_usd / point.api_usd == pytest.approx(10)


def test_hardly_any_traffic_is_not_copied_for_ever() -> None:
    requests = [TraceRequest(0.0, 5, 5), TraceRequest(1e8, 5, 5)]
    with pytest.raises(UsageError, match="take a part with more traffic"):
        crossover(traffic_of(requests), SPEED, Objectives(1.0, 0.1, 0.95), node_usd=1, api_usd=1)


def test_a_cheap_api_is_never_reached() -> None:
    found = crossover(even(), SPEED, LOOSE, node_usd=2.0, api_usd=1e-6)
    assert found.break_even_factor is None and found.break_even_utilization is None
    assert all(point.hybrid_nodes == 0 for point in found.points)


def test_stricter_objectives_need_more_nodes() -> None:
    traffic = even()
    shares = [largest_share(traffic, SPEED, Objectives(ttft, 0.1, 0.95)) for ttft in (5.0, 0.5, 0.1)]
    assert shares == sorted(shares, reverse=True)
    with pytest.raises(UsageError, match="hardly any load"):
        largest_share(traffic, SPEED, Objectives(0.01, 0.1, 0.95))


def test_the_same_input_gives_the_same_result() -> None:
    one, two = (crossover(even(), SPEED, LOOSE, node_usd=2.0, api_usd=1.0) for _ in range(2))
    assert one == two


def test_peaks_go_to_the_api() -> None:
    """Busy for one minute in ten: a node for the base, the peak elsewhere."""
    requests = [TraceRequest(at, 1_000, 200) for at in np.arange(0, 600, 2.0)]
    requests += [TraceRequest(300 + at / 60, 1_000, 200) for at in range(3_000)]
    traffic = traffic_of(sorted(requests, key=lambda one: one.at_s))
    found = crossover(traffic, SPEED, LOOSE, node_usd=2.0, api_usd=12.0, factors=[1.0])
    [point] = found.points
    assert 0 < point.hybrid_nodes < point.nodes
    assert 0 < point.hybrid_api_share < 1
    assert point.hybrid_usd < 0.95 * min(point.own_usd, point.api_usd)


def test_on_the_trace_of_azure(shared_data: Path) -> None:
    path = shared_data / "traces/azure2023/AzureLLMInferenceTrace_conv.csv"
    if not path.is_file():
        pytest.skip("needs the trace of Azure")
    traffic = traffic_of(read_trace(path)[:6_000])
    api = api_usd_per_hour(traffic, 0.15, 0.6)  # gpt-4o-mini
    found = crossover(traffic, SPEED, LOOSE, node_usd=2.5, api_usd=api)
    ratios = {point.factor: point.own_usd / point.api_usd for point in found.points}
    assert ratios[0.03] > 10 and ratios[10.0] < 0.5
    assert 0.1 < (found.break_even_utilization or 0) < 0.4


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = crossover(even(), SPEED, LOOSE, node_usd=2.0, api_usd=10.0, factors=[0.01, 0.1, 1.0])
    plot_crossover(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"


def test_the_command(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"2023-11-16 18:15:{second:02}.0,1000,200" for second in range(50)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    arguments = ["--trace", str(trace), "--node-usd", "2", "--prefill-tps", "20000", "--decode-tps", "4000"]
    arguments += [
        "--single-tps",
        "100",
        "--rows",
        "128",
        "--prices",
        '{"acme/big": {"input": 1, "output": 5}}',
    ]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "headrace", "economics", *arguments, *more]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path)

    done = run("--api", "acme/big", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["points"]) == 9
    table = run("--api", "acme/big").stdout
    assert "break-even" in table and "×0.001" in table
    for api, said in (("acme", "provider/model"), ("acme/other", "--api acme/other")):
        wrong = run("--api", api)
        assert wrong.returncode == 2 and said in wrong.stderr
    bare = [sys.executable, "-m", "headrace", "economics", *arguments[:4], *arguments[-2:]]
    bare += ["--api", "acme/big", "--json"]
    limits = subprocess.run(bare, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert limits.returncode == 0 and "limits for mini" in limits.stderr, limits.stderr
    assert json.loads(limits.stdout)["points"]
