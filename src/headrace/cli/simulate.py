"""`headrace simulate`: how a cluster of replicas would serve a trace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from headrace.bench.matplotlib_figure import check_matplotlib
from headrace.bench.serve.trace import read_trace
from headrace.cli.terminal import JsonFlag, note, print_json, print_table, progress_bar
from headrace.elastic.autoscaler import ScalingPolicy
from headrace.errors import UsageError
from headrace.simulate.autoscaled import AutoscaledResult, simulate_autoscaled
from headrace.simulate.cluster_file import (
    ClusterFile,
    check_replicas,
    check_roles,
    parse_policies,
    read_cluster_file,
)
from headrace.simulate.planner import PlannedCluster, plan_cluster
from headrace.simulate.simulation import ReplicaShape, SimulationResult, SloTargets, scaled_trace, simulate
from headrace.simulate.simulation_plot import plot_simulations

HELP = """Simulate replicas of a model that serve a trace, and compare ways to route requests to them.

The scheduler, the prefix cache and the router are those of a server; only the time of a step is computed,
from the coefficients in the file of --cluster. Without a file they are made up: about a model of 8 billion
parameters on a large accelerator, for comparing policies.

Policies: kv, the smallest predicted time to the first token, given what each replica has cached; least-load,
the fewest requests under way; round-robin; session, where equal beginnings go to the same replica.

With --prefill N --decode M (disaggregated prefill) N replicas read prompts for M others where that costs
less than reading them there; APART is the share of requests for which it does.

With --max replicas are started and stopped as a server does it (autoscaling), also for --ttft-ms and
--tpot-ms.

With --ttft-ms or --tpot-ms and --plan it finds the cheapest cluster that keeps these targets; with
--disaggregate it also tries replicas that only read prompts.

\b
Examples:
  headrace simulate --trace trace.jsonl.xz --replicas 4
  headrace simulate --trace trace.csv --replicas 8 --policy kv --speed 2 --json
  headrace simulate --trace trace.csv --policy kv --min 0 --max 8 --ttft-ms 500
  headrace simulate --trace trace.csv --prefill 2 --decode 6 --policy kv
  headrace simulate --trace trace.csv --cluster cluster.toml --plan --ttft-ms 500 --tpot-ms 50
"""


def command(
    trace: Annotated[Path, typer.Option(help="Azure's CSV or Mooncake's JSON lines, also as .xz.")],
    replicas: Annotated[
        int | None, typer.Option(help="Number of replicas; 4 unless the file says more.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="kv, least-load, round-robin or session; can be repeated. Default: all."),
    ] = None,
    prefill: Annotated[
        int | None, typer.Option(min=0, help="Replicas that read prompts for others, with --decode.")
    ] = None,
    decode: Annotated[int | None, typer.Option(min=0, help="Replicas that decode, with --prefill.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="File with replicas, policies and machines.")] = None,
    speed: Annotated[
        float, typer.Option(min=1e-6, max=1e6, help="Play the trace so many times as fast.")
    ] = 1.0,
    requests: Annotated[
        int | None, typer.Option(min=1, max=10**8, help="The first so many; a shorter trace is repeated.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Find the cheapest cluster within the targets.")
    ] = False,
    disaggregate: Annotated[
        bool, typer.Option("--disaggregate", help="With --plan: try replicas that read prompts for others.")
    ] = False,
    ttft_ms: Annotated[float | None, typer.Option(min=0.001, help="Target: time to the first token.")] = None,
    tpot_ms: Annotated[float | None, typer.Option(min=0.001, help="Target: time per further token.")] = None,
    met: Annotated[float, typer.Option(min=0.01, max=1, help="Share of requests within the targets.")] = 0.95,
    max_replicas: Annotated[int, typer.Option(min=1, max=10_000, help="With --plan.")] = 64,
    fewest: Annotated[
        int | None, typer.Option("--min", min=0, max=1000, help="Fewest replicas of autoscaling, with --max.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=1, max=1000, help="Most replicas of autoscaling.")
    ] = None,
    cold_start_s: Annotated[float, typer.Option(min=0, max=86_400, help="Of a replica, with --max.")] = 1.0,
    idle_s: Annotated[
        float, typer.Option(min=0.1, help="Until an unneeded replica is stopped, with --max.")
    ] = 60.0,
    png: Annotated[Path | None, typer.Option(help="Plot the results to this file.")] = None,
    json: JsonFlag = False,
) -> None:
    """Simulate; see HELP."""
    for flag, value in (
        *(("--speed", speed), ("--ttft-ms", ttft_ms), ("--tpot-ms", tpot_ms), ("--met", met)),
        *(("--cold-start-s", cold_start_s), ("--idle-s", idle_s)),
    ):  # neither is outside of a flag's range
        if value is not None and not math.isfinite(value):
            raise UsageError(f"{flag} is {value}: give a number", param=flag[2:].replace("-", "_"))
    if png is not None:
        check_matplotlib()
        if not png.parent.is_dir():  # before the simulation, which may take minutes
            raise UsageError(f"--png {png} cannot be written: there is no folder {png.parent}", param="png")
    file = ClusterFile() if cluster is None else read_cluster_file(cluster)
    check_replicas(replicas)
    policies = parse_policies(policy or [], file.policies)
    machines = file.machines or {"default": ReplicaShape()}
    targets = SloTargets(
        ttft_s=math.inf if ttft_ms is None else ttft_ms / 1e3,
        tpot_s=math.inf if tpot_ms is None else tpot_ms / 1e3,
    )
    has_targets = ttft_ms is not None or tpot_ms is not None
    if plan and not has_targets:
        raise UsageError("--plan needs targets: give --ttft-ms, --tpot-ms or both", param="plan")
    if plan and (replicas or prefill or decode or png):
        raise UsageError(
            "--plan finds the number of replicas: leave --replicas, --prefill, --decode and --png out",
            param="plan",
        )
    if disaggregate and not plan:
        raise UsageError("--disaggregate is for --plan: else give --prefill and --decode", param="plan")
    readers, decoders = _roles(file, replicas, prefill, decode)
    if not plan and len(machines) > 1:
        raise UsageError(
            f"the file has {len(machines)} kinds of machines: leave one, or compare them with --plan",
            param="cluster",
        )
    if most is None and fewest is not None:
        raise UsageError("--min is for autoscaling: give --max, too", param="min")
    if most is not None and (plan or replicas or readers or png or (fewest or 0) > most):
        raise UsageError(
            "--max follows the load from --min replicas on: leave --plan, --replicas, --prefill and --png "
            "out, and --min at most --max",
            param="max",
        )
    loaded = scaled_trace(read_trace(trace), speed=speed, requests=requests)
    if plan:
        with progress_bar("planning, one cluster after another", unit="requests") as progress:
            plans = plan_cluster(
                *(loaded, machines, policies, targets),
                share=met,
                max_replicas=max_replicas,
                disaggregates=disaggregate,
                progress=progress,
            )
        _print_plans(plans, json=json)
        return
    shape = next(iter(machines.values()))
    if most is not None:
        scaling = ScalingPolicy(fewest=1 if fewest is None else fewest, most=most, idle_s=idle_s, met=met)
        autoscaled: list[AutoscaledResult] = []
        for one in policies:
            with progress_bar(f"simulating {one}", unit="requests") as progress:
                found = simulate_autoscaled(
                    *(loaded, shape, one, scaling),
                    cold_start_s=cold_start_s,
                    targets=targets,
                    progress=progress,
                )
            autoscaled.append(found)
        _print_autoscaled(autoscaled, has_targets=has_targets, json=json)
        return
    count = (readers + decoders) or replicas or file.replicas or 4
    results: list[SimulationResult] = []
    for one in policies:
        with progress_bar(f"simulating {one}", unit="requests") as progress:
            results.append(
                simulate(loaded, shape, count, one, prefill=readers, targets=targets, progress=progress)
            )
    if png is not None:
        plot_simulations(results, png)
    if json:
        print_json({one.policy: _figures(one, has_targets=has_targets) for one in results})
    else:
        _print_results(results, has_targets=has_targets)
    if png is not None:
        note(f"wrote {png}")


def _roles(
    file: ClusterFile, replicas: int | None, prefill: int | None, decode: int | None
) -> tuple[int, int]:
    """How many replicas read prompts for others, and how many these are; 0 of both without roles."""
    if prefill is None and decode is None:
        return (0, 0) if replicas else (file.prefill, file.decode)
    found = prefill or 0, decode or 0
    check_roles(replicas, *found)
    return found


def _figures(result: SimulationResult, *, has_targets: bool) -> dict[str, Any]:
    figures: dict[str, Any] = to_builtins(result)
    ttft = figures["ttft_s"]
    figures["ttft_s"] = {name: ttft[name] for name in ("mean", "p50", "p95")}
    del figures["policy"]
    if not has_targets:
        del figures["attained"]
    return figures


def _print_results(results: list[SimulationResult], *, has_targets: bool) -> None:
    header = [
        "POLICY",
        "TTFT MEAN",
        "TTFT P50",
        "TTFT P95",
        "TPOT MEAN",
        "TPOT P99",
        "CACHED",
        "TOKENS/S",
        "BUSY",
    ]
    priced = any(one.usd_per_million_tokens for one in results)
    has_roles = results[0].prefill > 0
    header += ["APART"] * has_roles + ["USD/1M TOKENS"] * priced + ["WITHIN TARGETS"] * has_targets
    rows = [
        [
            one.policy,
            *(f"{value:.3f} s" for value in (one.ttft_s.mean, one.ttft_s.p50, one.ttft_s.p95)),
            *(f"{value * 1e3:.1f} ms" for value in (one.tpot_s, one.tpot_p99_s)),
            f"{one.hit_rate:.1%}",
            f"{one.throughput_tok_s:,.0f}",
            f"{one.utilization:.0%}",
            *([f"{one.apart:.0%}"] * has_roles),
            *([f"{one.usd_per_million_tokens:.2f}"] * priced),
            *([f"{one.attained:.1%}"] * has_targets),
        ]
        for one in results
    ]
    print_table(rows, header=header)
    first = results[0]
    if first.refused:
        note(f"{first.refused:,} requests fit no replica and were left out: give replicas more kv_tokens")


def _print_autoscaled(results: list[AutoscaledResult], *, has_targets: bool, json: bool) -> None:
    if json:
        figures = {
            one.served.policy: {
                **_figures(one.served, has_targets=has_targets),
                "mean_replicas": one.mean_replicas,
                "usd": one.usd,
                "starts": one.starts,
            }
            for one in results
        }
        print_json(figures)
        return
    _print_results([one.served for one in results], has_targets=has_targets)
    rows = [
        [
            one.served.policy,
            f"{one.mean_replicas:.2f}",
            str(one.served.replicas),
            str(one.starts),
            f"{one.usd:.2f}",
        ]
        for one in results
    ]
    print_table(rows, header=["POLICY", "REPLICAS, MEAN", "MOST", "STARTS", "USD"])


def _print_plans(plans: list[PlannedCluster], *, json: bool) -> None:
    if json:
        print_json([to_builtins(one) for one in plans])
        return
    rows = [
        [
            one.machine,
            one.policy,
            "none" if one.replicas is None else str(one.replicas),
            str(one.prefill),
            f"{one.usd_per_hour:.2f}",
            f"{one.best.attained:.1%}",
            f"{one.best.ttft_s.p95:.3f} s",
            f"{one.best.tpot_p99_s * 1e3:.1f} ms",
        ]
        for one in plans
    ]
    header = [
        "MACHINE",
        "POLICY",
        "REPLICAS",
        "PREFILL",
        "USD/HOUR",
        "WITHIN TARGETS",
        "TTFT P95",
        "TPOT P99",
    ]
    print_table(rows, header=header)
    if all(one.replicas is None for one in plans):
        note("no cluster keeps the targets: allow more --max-replicas, or looser targets")
