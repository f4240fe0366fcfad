"""The simulator: conservation, a closed form, real traces, and its command line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.bench.matplotlib_figure import new_figure
from headrace.bench.serve.trace import TraceRequest, read_trace
from headrace.cli import main as command_line
from headrace.cluster.router import POLICIES, Policy
from headrace.errors import InvalidRequest
from headrace.simulate import simulation_plot
from headrace.simulate.cluster_file import EXAMPLE
from headrace.simulate.planner import PlannedCluster, plan_cluster
from headrace.simulate.simulation import ReplicaShape, SloTargets, scaled_trace, simulate
from headrace.simulate.trace_tokens import TraceTokens

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"
MOONCAKE = TRACES / "mooncake" / "synthetic_trace.jsonl.xz"
AZURE = TRACES / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
SHAPE = ReplicaShape()


def trace_of(path: Path) -> list[TraceRequest]:
    if not path.exists():
        pytest.skip(f"{path.name} is not on this machine")
    return read_trace(path)


def test_one_request_takes_what_the_costs_say() -> None:
    shape = ReplicaShape(step_s=0.01, prefill_s=1e-3, row_s=1e-3, pair_s=1e-6, max_batch_tokens=512)
    found = simulate([TraceRequest(0.0, 100, 11)], shape, 1, "kv")
    assert found.ttft_s.mean == pytest.approx(0.01 + 100e-3 + 1e-6 * 100 * 101 / 2)
    seen = sum(range(101, 111))  # each of ten steps attends to the token itself and those before it
    assert found.tpot_s == pytest.approx((10 * 0.011 + 1e-6 * seen) / 10)


def test_a_request_that_arrives_within_a_call_waits_for_one_step_alone() -> None:
    shape = ReplicaShape(step_s=0.01, prefill_s=1e-5, row_s=0.0, pair_s=0.0)
    trace = [TraceRequest(0.0, 1, 1001), TraceRequest(5.0, 1, 1)]
    found = simulate(trace, shape, 1, "kv")
    assert found.ttft_s.p99 <= 0.02 + 1e-3
    assert found.throughput_tok_s == pytest.approx(1002 / 10.01, rel=1e-3)


def test_replicas_of_a_machine_slow_each_other_down() -> None:
    alone = ReplicaShape(step_s=1e-9, prefill_s=1e-3, row_s=0.0, pair_s=0.0)
    shape = replace(alone, per_machine=2, speeds=(1.0, 0.5))
    trace = [TraceRequest(0.0, 100, 1), TraceRequest(0.0, 300, 1), TraceRequest(1.0, 300, 1)]
    apart, together = (simulate(trace, one, 2, "round-robin") for one in (alone, shape))
    assert apart.ttft_s.mean == pytest.approx((0.1 + 0.3 + 0.3) / 3)
    assert together.ttft_s.mean == pytest.approx((0.2 + 0.4 + 0.3) / 3)
    crowded = simulate(trace[:2] * 2, replace(shape, per_machine=4), 4, "round-robin")
    # At a quarter each until 0.4, when two have ended; then at a half.
    assert crowded.ttft_s.mean == pytest.approx((0.4 + 0.8) / 2)


def busy_trace(prompt: int, per_s: float, count: int = 300) -> list[TraceRequest]:
    drawn = random.Random(3)
    at_s, found = 0.0, list[TraceRequest]()
    for _ in range(count):
        at_s += drawn.expovariate(per_s)
        found.append(TraceRequest(at_s, drawn.randint(prompt // 2, prompt), drawn.randint(50, 200)))
    return found


def test_prompts_that_are_read_apart_do_not_delay_streams() -> None:
    trace = busy_trace(12_000, 8.0)
    together = simulate(trace, SHAPE, 4, "kv")
    apart, again = (simulate(trace, SHAPE, 4, "kv", prefill=2) for _ in range(2))
    assert apart == again and apart.requests == 300 and apart.prefill == 2
    assert apart.apart > 0.5 and together.apart == 0
    assert apart.tpot_p99_s < 0.5 * together.tpot_p99_s
    assert apart.throughput_tok_s > 0.9 * together.throughput_tok_s
    far = simulate(trace, replace(SHAPE, move_s=6000.0), 4, "kv", prefill=2)
    assert far.apart == 0, "what costs more is not done"


def test_an_idle_cluster_reads_prompts_where_they_are_decoded() -> None:
    trace = [TraceRequest(number * 30.0, 4000, 20) for number in range(20)]
    found = simulate(trace, SHAPE, 4, "kv", prefill=2)
    assert found.apart == 0
    assert found.ttft_s.mean == pytest.approx(simulate(trace, SHAPE, 2, "kv").ttft_s.mean)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_and_runs_are_alike(policy: Policy) -> None:
    lengths = [700 + number * 13 % 900 for number in range(300)]
    trace = [
        TraceRequest(
            at * 0.01, length, 1 + at % 50, (at % 7, 1000 + at // 3, 5000 + at, 0)[: -(-length // 512)]
        )
        for at, length in enumerate(lengths)
    ]
    small = replace(SHAPE, kv_tokens=16 * 512, max_batch_tokens=512, max_num_seqs=16)
    first, second = (simulate(trace, small, 3, policy) for _ in range(2))
    assert first == second
    assert first.requests == 300 and first.refused == 0
    assert 0 < first.hit_rate < 1 and 0 < first.utilization <= 1


def test_slices_of_tokens_are_blocks() -> None:
    tokens = TraceTokens(3, 1300, (7, 8, 9), 512)
    assert len(tokens) == 1300 and tokens[0:512] == (7,) and tokens[512:1024] == (8,)
    tokens.grow(300)
    other = TraceTokens(4, 1600, (7, 8, 9), 512)
    (own,) = tokens[1024:1536]
    assert own not in (7, 8, 9) and other[1024:1536] == (9,), "the prompt filled the block itself"
    assert tokens[:1024] == (7, 8)


def test_a_longer_trace_repeats_with_other_blocks() -> None:
    trace = [TraceRequest(0.0, 10, 1, (0,)), TraceRequest(10.0, 10, 1, (1,))]
    longer = scaled_trace(trace, speed=2.0, requests=5)
    assert [one.at_s for one in longer] == [0.0, 5.0, 7.5, 12.5, 15.0]
    assert len({one.blocks for one in longer}) == 5


def test_kv_routing_on_mooncake_hits_as_one_cache_and_is_faster() -> None:
    trace = trace_of(MOONCAKE)
    fast = replace(SHAPE, step_s=1e-9, prefill_s=1e-9, row_s=0.0, pair_s=0.0, kv_tokens=4 * SHAPE.kv_tokens)
    one_cache = simulate(trace, fast, 1, "kv")
    kv, turns = (simulate(trace, SHAPE, 4, policy) for policy in ("kv", "round-robin"))
    assert kv.hit_rate >= 0.9 * one_cache.hit_rate
    assert kv.ttft_s.mean <= 0.6 * turns.ttft_s.mean


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_kv_routing_without_shared_prefixes_is_no_worse_than_least_load(speed: float) -> None:
    trace = scaled_trace(trace_of(AZURE)[:1500], speed=speed)
    kv, least = (simulate(trace, SHAPE, 4, policy) for policy in ("kv", "least-load"))
    assert kv.ttft_s.mean <= 1.02 * least.ttft_s.mean
    assert kv.tpot_s <= 1.02 * least.tpot_s
    assert kv.throughput_tok_s >= 0.98 * least.throughput_tok_s


def test_the_planner_finds_the_cheapest_that_keeps_the_targets() -> None:
    trace = [TraceRequest(number * 0.02, 1000, 50) for number in range(200)]
    machines = {
        "large": ReplicaShape(usd_per_hour=3.0),
        "small": ReplicaShape(step_s=0.012, prefill_s=5e-5, usd_per_hour=1.0),
        "useless": ReplicaShape(prefill_s=1.0, usd_per_hour=0.01),
    }
    targets = SloTargets(ttft_s=0.3, tpot_s=0.05)
    plans = plan_cluster(trace, machines, ["kv"], targets, share=0.95, max_replicas=16)
    best = plans[0]
    assert best.replicas is not None and plans[-1].machine == "useless" and plans[-1].replicas is None
    shape = machines[best.machine]
    assert simulate(trace, shape, best.replicas, "kv", targets=targets).attained >= 0.95
    if best.replicas > 1:
        assert simulate(trace, shape, best.replicas - 1, "kv", targets=targets).attained < 0.95


@pytest.mark.parametrize("seed", range(2))
def test_the_planner_finds_what_trying_all_finds(seed: int) -> None:
    drawn = random.Random(seed)
    trace = busy_trace(drawn.choice([1000, 4000]), drawn.uniform(3, 15), 60)
    targets = SloTargets(ttft_s=drawn.uniform(0.1, 0.5), tpot_s=drawn.uniform(0.01, 0.05))
    machines = {
        "large": ReplicaShape(usd_per_hour=3.0),
        "small": ReplicaShape(step_s=0.012, prefill_s=5e-5, usd_per_hour=1.0),
    }
    plans = plan_cluster(trace, machines, ["kv", "least-load"], targets, share=0.9, max_replicas=8)
    tried: list[tuple[float, int]] = []
    for plan in plans:
        shape = machines[plan.machine]
        keep = (
            count
            for count in range(1, 9)
            if simulate(trace, shape, count, plan.policy, targets=targets).attained >= 0.9
        )
        fewest = next(keep, None)
        assert plan.replicas == fewest
        if fewest is not None:
            tried.append((fewest * shape.usd_per_hour, fewest))
    if tried:
        assert (plans[0].usd_per_hour, plans[0].replicas) == min(tried)


def test_the_planner_disaggregates_only_where_that_saves() -> None:
    machines = {"large": ReplicaShape(usd_per_hour=3.0)}

    def plans(trace: list[TraceRequest], targets: SloTargets) -> list[PlannedCluster]:
        found = [
            plan_cluster(trace, machines, ["kv"], targets, share=0.9, max_replicas=8, disaggregates=also)[0]
            for also in (False, True)
        ]
        assert found[0].prefill == 0
        return found

    together, apart = plans(busy_trace(500, 8.0, 60), SloTargets(ttft_s=0.5, tpot_s=0.05))
    assert together == apart, "what is not needed is not done"
    together, apart = plans(busy_trace(12_000, 6.0, 120), SloTargets(ttft_s=2.0, tpot_s=0.012))
    assert apart.replicas is not None and apart.prefill > 0
    assert together.replicas is None or apart.replicas < together.replicas


def test_planning_tells_of_the_requests_of_each_cluster() -> None:
    told: list[tuple[int, int]] = []
    trace, targets = busy_trace(100, 2.0, 50), SloTargets(ttft_s=1e-9)
    plan_cluster(
        *(trace, {"a": SHAPE}, ["kv"], targets),
        share=0.9,
        max_replicas=2,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told.count((50, 50)) == 2, "one replica, then two"


def test_caches_that_do_not_fit_into_memory_are_refused() -> None:
    trace, shape = [TraceRequest(0.0, 10, 5)], ReplicaShape(kv_tokens=10**9)
    with pytest.raises(InvalidRequest, match="64 replicas with 64,000,000,000 tokens of KV cache"):
        simulate(trace, shape, 64, "kv")


def headrace(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command_line.main(words)
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, cluster = tmp_path / "trace.csv", tmp_path / "cluster.toml"
    lines = [f"2026-01-01 00:00:{second:02}.0,{100 + second},{5 + second % 3}" for second in range(40)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    cluster.write_text(EXAMPLE)
    assert headrace("simulate", "--trace", str(trace), "--replicas", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(POLICIES)
    for figures in found.values():
        assert set(figures["ttft_s"]) == {"mean", "p50", "p95"}
        assert {"tpot_s", "hit_rate", "throughput_tok_s"} <= set(figures)
    words = ("simulate", "--trace", str(trace), "--prefill", "1", "--decode", "2", "--policy", "kv")
    assert headrace(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["kv"]["replicas"] == 3
    assert headrace(*words) == 0 and "APART" in capsys.readouterr().out
    plot = tmp_path / "plot.png"
    words = ("simulate", "--trace", str(trace), "--cluster", str(cluster))
    assert headrace(*words, "--png", str(plot)) == 0
    shown = capsys.readouterr()
    assert plot.stat().st_size > 10_000 and "round-robin" in shown.out and f"wrote {plot}" in shown.err
    assert headrace(*words, "--plan", "--ttft-ms", "500", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["replicas"] == 1


def test_legends_hide_no_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def figure(width: float, height: float) -> Any:
        drawn.append(new_figure(width, height))
        return drawn[-1]

    monkeypatch.setattr(simulation_plot, "new_figure", figure)
    trace = busy_trace(2000, 8.0, 60)
    found = [simulate(trace, replace(SHAPE, usd_per_hour=1.0), 2, policy) for policy in POLICIES]
    file = tmp_path / "a plot"
    simulation_plot.plot_simulations(found, file)
    assert file.read_bytes().startswith(b"\x89PNG"), "whatever its name is"
    drawn[0].draw_without_rendering()
    for axes in drawn[0].axes:
        box = axes.get_legend().get_window_extent()
        assert not any(box.overlaps(bar.get_window_extent()) for bar in axes.patches), axes.get_title()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--policy", "fastest"), "known are kv, least-load, round-robin, session"),
        (("--replicas", "0"), "from 1 to 10,000"),
        (("--plan",), "--plan needs targets"),
        (("--cluster", "typo.toml"), "replica_s"),
        (("--cluster", "negative.toml"), "machines.a.step_s"),
        (("--cluster", "narrow.toml"), "below max_num_seqs"),
        (("--cluster", "none.toml"), "cannot be read"),
        (("--disaggregate",), "--disaggregate is for --plan"),
        (("--prefill", "2"), "prefill is 2 and decode 0: give both"),
        (("--prefill", "2", "--decode", "1", "--replicas", "4"), "replicas is 4, with prefill 2"),
        (("--plan", "--ttft-ms", "9", "--prefill", "1", "--decode", "1"), "leave --replicas, --prefill"),
        (("--cluster", "roles.toml"), "prefill is 0 and decode 3"),
        (("--cluster", "still.toml"), "machines.a.speeds"),
        (("--png", "nowhere/plot.png"), "there is no folder nowhere"),
        (("--cluster", "crowd.toml"), "machines.a.max_num_seqs"),
        (("--cluster", "deep.toml"), "deep.toml cannot be read"),
        (("--cluster", "digits.toml"), "digits.toml cannot be read"),
        (("--speed", "nan"), "'--speed'"),
        (("--ttft-ms", "inf"), "--ttft-ms is inf"),
        (("--max", "2", "--min", "0", "--cold-start-s", "nan"), "'--cold-start-s'"),
        (("--max", "2", "--min", "0", "--cold-start-s", "1e9"), "cold-start-s"),
    ],
)
def test_wrong_usage_is_named(
    words: tuple[str, ...],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:00.0,10,5\n")
    Path("typo.toml").write_text("replica_s = 4")
    Path("negative.toml").write_text("[machines.a]\nstep_s = -1.0")
    Path("roles.toml").write_text("decode = 3")
    Path("still.toml").write_text("[machines.a]\nspeeds = [1.0, 0.0]")
    Path("crowd.toml").write_text("[machines.a]\nmax_num_seqs = 1000000000\nmax_batch_tokens = 1000000000")
    Path("deep.toml").write_text("x = " + "[" * 10_000)
    Path("digits.toml").write_text("replicas = " + "9" * 5000)
    Path("narrow.toml").write_text("[machines.a]\nmax_batch_tokens = 8")
    assert headrace("simulate", "--trace", "trace.csv", *words) == 2
    assert named in capsys.readouterr().err
