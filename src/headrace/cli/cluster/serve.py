"""`headrace cluster serve`: models over HTTP, by several processes each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from headrace.cli.flags import takes_settings_again
from headrace.cli.serve import start_server
from headrace.config.cluster_settings import read_cluster
from headrace.config.settings import SETTINGS, Settings

HELP = """Serve models over HTTP as `headrace serve` does, each by several processes (replicas).

Everything else is the same: APIs, keys, limits, settings, and the bytes of every answer. Without --threads
the replicas share the cores; each has a KV cache of its own, within --memory in all.

With --min and --max replicas are started while more requests run than they have places for, or too few keep
--ttft-ms and --tpot-ms, and stopped when they are not needed; with --min 0 an idle model has none.

With --prefill N --decode M (disaggregated prefill) N replicas compute prompts and M others generate the
tokens, and get the pages of the KV cache: long prompts do not slow down other replies.

\b
Examples:
  headrace cluster serve --replicas 2
  headrace cluster serve ./my-model --replicas 1 --min 0 --max 4 --policy least-load
  headrace cluster serve ./my-model --prefill 1 --decode 1
"""


@takes_settings_again(*(name for name in SETTINGS if name != "cluster"))
def command(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODELS", help="Folders, OWNER/NAME or bundled models.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Processes of each model at the start.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="kv (default), least-load, round-robin or session.")
    ] = None,
    min_replicas: Annotated[
        int | None, typer.Option("--min", help="Fewest replicas; 0: none when idle.")
    ] = None,
    max_replicas: Annotated[int | None, typer.Option("--max", help="Most replicas.")] = None,
    prefill: Annotated[
        int | None, typer.Option(help="Replicas that only compute prompts, with --decode.")
    ] = None,
    decode: Annotated[int | None, typer.Option(help="Replicas that only decode, with --prefill.")] = None,
    launcher: Annotated[str | None, typer.Option(help="local (default) or ray.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="Address of this machine that replicas on Ray connect to.")
    ] = None,
    fronts: Annotated[
        int | None, typer.Option(help="Servers behind one address, of which this is one.")
    ] = None,
    ttft_ms: Annotated[
        float | None, typer.Option(help="Target of the time to the first token, for --max.")
    ] = None,
    tpot_ms: Annotated[
        float | None, typer.Option(help="Target of the time per token after it, for --max.")
    ] = None,
    *,
    read_settings: Callable[[], Settings],
) -> None:
    """Serve; see HELP."""
    flags: dict[str, Any] = {
        "replicas": replicas,
        "policy": policy,
        "min": min_replicas,
        "max": max_replicas,
        "prefill": prefill,
        "decode": decode,
        "launcher": launcher,
        "listen": listen,
        "fronts": fronts,
        "ttft_ms": ttft_ms,
        "tpot_ms": tpot_ms,
    }
    given = {name: value for name, value in flags.items() if value is not None}

    def read_again() -> Settings:
        settings = read_settings()
        table = {**(settings.cluster or {}), **given}
        read_cluster(table)
        return replace(settings, cluster=table)

    start_server(models or [], read_again)
