"""The file that describes a cluster to simulate: replicas, routing, kinds of machines."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from headrace.cluster.router import POLICIES, Policy
from headrace.errors import UsageError
from headrace.simulate.simulation import ReplicaShape

MAX_REPLICAS = 10_000
_MOST = {
    "kv_tokens": 10**9,
    "max_batch_tokens": 10**9,
    "max_num_seqs": 10**5,
    "per_machine": MAX_REPLICAS,
}
EXAMPLE = """\
replicas = 4
policies = ["kv", "round-robin"]

[machines.large]             # one kind of machine, or several to compare
step_s = 0.006               # seconds of every step,
prefill_s = 2.5e-5           # more for each token of prompts,
row_s = 5e-5                 # for each sequence that generates,
pair_s = 1e-9                # for each pair of tokens of which one attends to the other
kv_tokens = 1_536_000        # room of its KV cache
max_batch_tokens = 8192
max_num_seqs = 256
usd_per_hour = 2.5
per_machine = 1              # replicas of one machine, and the speed of each of them
speeds = [1.0]               # while one, two, ... compute; one alone has 1
reply_s = 0.0                # of every request, beside its steps
move_s = 0.002               # with prefill and decode: until the last pages of a prompt have moved,
move_token_s = 1e-5          # and more for each token of its last step
"""


class ClusterFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says; None: not given. `prefill` replicas read prompts for `decode` others."""

    replicas: int | None = None
    prefill: int = 0
    decode: int = 0
    policies: tuple[Policy, ...] = ()
    machines: dict[str, ReplicaShape] = {}


def read_cluster_file(path: Path) -> ClusterFile:
    """Raises UsageError that names the field."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), ClusterFile)
    except msgspec.ValidationError as error:
        raise UsageError(f"--cluster {path}: {error}; a cluster file:\n{EXAMPLE}", param="cluster") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--cluster {path} cannot be read: {error}", param="cluster") from None
    check_replicas(found.replicas)
    check_roles(found.replicas, found.prefill, found.decode)
    for name, shape in found.machines.items():
        check_shape(f"--cluster {path}: machines.{name}", shape)
    return found


def check_replicas(replicas: int | None) -> None:
    """UsageError for too few or too many."""
    if replicas is not None and not 1 <= replicas <= MAX_REPLICAS:
        raise UsageError(
            f"replicas is {replicas}: from 1 to {MAX_REPLICAS:,} can be simulated", param="replicas"
        )


def check_roles(replicas: int | None, prefill: int, decode: int) -> None:
    """UsageError unless both roles are there, or none, and together they are the replicas."""
    if prefill < 0 or decode < 0 or bool(prefill) != bool(decode):
        raise UsageError(
            f"prefill is {prefill} and decode {decode}: give both, one or more of each",
            param="prefill" if decode else "decode",
        )
    if prefill and replicas not in (None, prefill + decode):
        raise UsageError(
            f"replicas is {replicas}, with prefill {prefill} and decode {decode}: leave it out",
            param="replicas",
        )
    check_replicas((prefill + decode) or None)


def check_shape(where: str, shape: ReplicaShape) -> None:
    """UsageError for what no machine is."""
    for name in ("step_s", "prefill_s"):
        if not 0 < getattr(shape, name) < 1e4:
            raise UsageError(
                f"{where}.{name} is {getattr(shape, name)}: give seconds above 0", param="cluster"
            )
    for name in ("row_s", "pair_s", "usd_per_hour", "reply_s", "move_s", "move_token_s"):
        if not 0 <= getattr(shape, name) < 1e6:
            raise UsageError(f"{where}.{name} is {getattr(shape, name)}: give 0 or more", param="cluster")
    for name, most in _MOST.items():
        if not 1 <= getattr(shape, name) <= most:
            raise UsageError(
                f"{where}.{name} is {getattr(shape, name)}: give a number from 1 to {most:,}", param="cluster"
            )
    if not shape.speeds or not all(1e-6 < one <= 1e3 for one in shape.speeds):
        raise UsageError(
            f"{where}.speeds is {list(shape.speeds)}: give the speed of a replica while one, two, ... of its "
            "machine compute, such as [1.0, 0.9]",
            param="cluster",
        )
    if shape.max_batch_tokens < shape.max_num_seqs:
        raise UsageError(
            f"{where}.max_batch_tokens is {shape.max_batch_tokens}, below max_num_seqs {shape.max_num_seqs}: "
            "every running sequence needs one token per step",
            param="cluster",
        )


def parse_policies(given: list[str], known: tuple[Policy, ...]) -> tuple[Policy, ...]:
    """The policies named, or those of the file, or all. A name may be a list with bars: kv|least-load."""
    names = [name for one in given for name in one.replace(",", "|").split("|")]
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"--policy {name!r} is unknown: known are {', '.join(POLICIES)}", param="policy")
    chosen: list[Policy] = [policy for policy in POLICIES if policy in names]
    return tuple(chosen) or known or POLICIES
