"""`headrace cluster`: models that are served by several processes each."""

HELP = """Serve each model by several processes (replicas), and manage these.

Requests go to the replica that is expected to answer first, given what each has in its cache. If a replica
dies or hangs, another one continues its requests, with the same bytes. The table [cluster] of headrace.toml
makes `headrace serve` do the same.

\b
Examples:
  headrace cluster serve ./my-model --replicas 4
  headrace cluster status
  headrace cluster drain 2
  headrace cluster replace
  headrace cluster update
"""
COMMANDS = {
    "serve": "Serve models over HTTP, each by several replicas.",
    "status": "The replicas of a running server: load and cache.",
    "drain": "Stop a replica; others continue its requests.",
    "replace": "Restart all replicas without a failed request.",
    "update": "Take new weights without a failed request.",
    "leave": "Drain the replicas on this machine.",
}
