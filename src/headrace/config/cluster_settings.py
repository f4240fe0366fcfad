"""Settings of replicas: the table `[cluster]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from msgspec import Struct

from headrace.config.names import known_name
from headrace.config.setting import Setting, table_of
from headrace.config.settings import Settings
from headrace.config.values import SIZE, integer, number, one_of, text
from headrace.errors import UsageError

RoutingPolicy = Literal["kv", "least-load", "round-robin", "session"]
ROUTING_POLICIES: tuple[RoutingPolicy, ...] = get_args(RoutingPolicy)
Launcher = Literal["local", "ray"]
Disaggregation = Literal["auto", "always"]
MAX_LIVE_REPLICAS = 256


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """The table `[cluster]`: every model is served by several processes."""

    replicas: Annotated[
        int,
        Setting(
            help="processes of each model at the start",
            values=integer(0, MAX_LIVE_REPLICAS),
            shown_default="1, or min where that is more",
        ),
    ] = 1
    policy: Annotated[
        RoutingPolicy, Setting(help="which replica gets a request", values=one_of(RoutingPolicy))
    ] = "kv"
    min: Annotated[
        int | None,
        Setting(
            help="fewest replicas; 0: an idle model has no process",
            values=integer(0, MAX_LIVE_REPLICAS),
            shown_default="replicas",
        ),
    ] = None
    max: Annotated[
        int | None,
        Setting(
            help="most replicas",
            values=integer(1, MAX_LIVE_REPLICAS),
            shown_default="replicas",
        ),
    ] = None
    prefill: Annotated[
        int,
        Setting(
            help="replicas that read prompts for those that decode, to which the pages of the KV cache go; "
            "0: every replica does both",
            values=integer(0, MAX_LIVE_REPLICAS),
        ),
    ] = 0
    decode: Annotated[
        int,
        Setting(help="replicas that decode, where others read prompts", values=integer(0, MAX_LIVE_REPLICAS)),
    ] = 0
    disaggregation: Annotated[
        Disaggregation,
        Setting(
            help="with prefill and decode, auto: a prompt is read apart where the measured costs say that it "
            "pays, else where it is decoded; always: whatever it costs",
            values=one_of(Disaggregation),
        ),
    ] = "auto"
    warm: Annotated[
        int,
        Setting(
            help="most bytes of KV pages that a new replica gets from another one, the most recently used of "
            "its prefix cache",
            values=SIZE,
        ),
    ] = 64 << 20
    drain_s: Annotated[
        float,
        Setting(
            help="seconds that a draining replica has to finish its replies; others continue the rest, "
            "with the pages of their prompts",
            values=number(0, 86_400),
        ),
    ] = 30.0
    launcher: Annotated[
        Launcher,
        Setting(
            help="local: processes of this machine; ray: the first here, the others on nodes of the Ray "
            "cluster of RAY_ADDRESS, or of one that is started here",
            values=one_of(Launcher),
        ),
    ] = "local"
    listen: Annotated[
        str,
        Setting(help="address of this machine that replicas on Ray connect to", values=text("address")),
    ] = "127.0.0.1"
    fronts: Annotated[
        int,
        Setting(
            help="servers behind one address, of which this is one: more share keys, limits, files, batches "
            "and stored responses in the PostgreSQL of `ledger`; what only one would have is refused",
            values=integer(1, 1000),
        ),
    ] = 1
    ttft_ms: Annotated[
        float | None,
        Setting(
            help="target of the time to the first token: another replica is started while less than `met` of "
            "the requests of the last 30 s kept the targets",
            values=number(1, 3_600_000),
            shown_default="none",
        ),
    ] = None
    tpot_ms: Annotated[
        float | None,
        Setting(
            help="target of the time per token after the first",
            values=number(0.01, 60_000),
            shown_default="none",
        ),
    ] = None
    met: Annotated[
        float, Setting(help="share of the requests that should keep the targets", values=number(0.01, 1))
    ] = 0.99
    idle_s: Annotated[
        float, Setting(help="seconds after which an unneeded replica is stopped", values=number(0.1, 86_400))
    ] = 60.0
    hang_s: Annotated[
        float,
        Setting(
            help="seconds without a step after which a replica is killed and others continue its requests; "
            "ten times its longest step if that is longer",
            values=number(0.5, 3600),
        ),
    ] = 10.0

    @property
    def fewest(self) -> int:
        """Replicas that there are always."""
        return self.replicas if self.min is None else self.min

    @property
    def most(self) -> int:
        """Replicas that there may be."""
        return max(self.replicas, 1) if self.max is None else self.max


CLUSTER_SETTINGS: Mapping[str, Setting] = table_of(ClusterSettings)


def read_cluster(table: Mapping[str, object] | None) -> ClusterSettings | None:
    """The table `[cluster]`, None without one; UsageError names what is unknown or no value."""
    if table is None:
        return None
    values: dict[str, Any] = {}
    for name, value in table.items():
        row = CLUSTER_SETTINGS[known_name(name, list(CLUSTER_SETTINGS), f"cluster: unknown {name!r}")]
        values[name] = row.parse(value, f"cluster.{name}")
    found = ClusterSettings(**_with_roles(_with_start(values)))
    targets = found.ttft_ms is not None or found.tpot_ms is not None
    if targets and found.most == found.fewest:
        raise UsageError(
            f"cluster.ttft_ms and cluster.tpot_ms start further replicas, and there are always {found.most}: "
            "give max, or leave the targets out",
            param="ttft_ms" if found.ttft_ms is not None else "tpot_ms",
        )
    if "met" in values and not targets:
        raise UsageError("cluster.met has no effect without ttft_ms or tpot_ms: give one", param="met")
    if not found.fewest <= found.replicas <= found.most:
        raise UsageError(
            f"cluster.replicas is {found.replicas}, with min {found.fewest} and max {found.most}: "
            "it starts between these",
            param="replicas",
        )
    return found


def _with_start(values: dict[str, Any]) -> dict[str, Any]:
    """Where `replicas` is not given there are as many at the start as `min` asks for, and one at least."""
    least, most = values.get("min"), values.get("max")
    if least is not None and most is not None and least > most:
        raise UsageError(f"cluster.min is {least} and cluster.max {most}: min is at most max", param="min")
    if least is None or "replicas" in values or "prefill" in values or "decode" in values:
        return values
    return {**values, "replicas": max(1, least)}


def _with_roles(values: dict[str, Any]) -> dict[str, Any]:
    """`replicas` follows from `prefill` and `decode`, whose numbers stay."""
    prefill, decode = values.get("prefill", 0), values.get("decode", 0)
    if not prefill and not decode:
        return values
    if not prefill or not decode:
        raise UsageError(
            f"cluster.prefill is {prefill} and cluster.decode {decode}: give both, one or more of each",
            param="prefill" if decode else "decode",
        )
    for name in ("min", "max"):
        if values.get(name) not in (None, prefill + decode):
            raise UsageError(
                f"cluster.{name} is {values[name]}: the number of replicas does not change where {prefill} "
                f"read prompts and {decode} decode: leave it out",
                param=name,
            )
    if values.get("replicas", prefill + decode) != prefill + decode:
        raise UsageError(
            f"cluster.replicas is {values['replicas']}, with prefill {prefill} and decode {decode}: leave it "
            "out",
            param="replicas",
        )
    if prefill + decode > MAX_LIVE_REPLICAS:
        raise UsageError(
            f"cluster.prefill is {prefill} and cluster.decode {decode}: at most {MAX_LIVE_REPLICAS} in all",
            param="prefill",
        )
    return {**values, "replicas": prefill + decode}


def shares_store(settings: Settings) -> bool:
    """Whether several fronts keep keys, files, batches and responses together, in the ledger's PostgreSQL."""
    found = read_cluster(settings.cluster)
    return found is not None and found.fronts > 1 and settings.ledger is not None


def check_fronts(settings: Settings) -> None:
    """UsageError for what only one of several servers behind one address would count or keep."""
    found = read_cluster(settings.cluster)
    if found is None or found.fronts == 1:
        return
    for name in ("key_rpm", "key_tpm", "key_max_concurrency"):
        if getattr(settings, name) is not None and settings.ledger is None:
            raise UsageError(
                f"{name} is counted by each server alone, and fronts is {found.fronts}: set ledger to the "
                "postgresql://… of all of them, or limit requests in the proxy before them",
                param=name,
            )
    if settings.budgets and settings.ledger is None:
        raise UsageError(
            f"budgets need a ledger that all {found.fronts} servers share: set ledger to postgresql://…",
            param="budgets",
        )
    if (settings.adapt or {}).get("enabled"):
        raise UsageError(
            f"adapt keeps examples and students on one server, and fronts is {found.fronts}: leave one out",
            param="adapt",
        )
