"""`headrace cluster`: models that are served by several processes each."""

HELP = """Serve models by several processes each (replicas), and manage these.

Requests go to the replica that is expected to answer first, given what each has in its cache. Where a replica
ends or hangs, its requests go on in another one, with the same bytes. The table [cluster] of headrace.toml
says the same for `headrace serve`.

\\b
Examples:
  headrace cluster serve ./my-model --replicas 4
  headrace cluster status
  headrace cluster drain 2
  headrace cluster replace
"""
COMMANDS = {
    "serve": "Serve models over HTTP, each by several replicas.",
    "status": "The replicas of a running server: load and cache.",
    "drain": "End a replica; its requests go on elsewhere.",
    "replace": "Start all replicas anew without a failed request.",
}
