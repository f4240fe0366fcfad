"""`headrace bench`: what this machine can do, and how near the engine comes to it."""

HELP = """Measure: the machine, a model on it, the parts of a step, a server under load.

Speeds on this machine are also given as a share of what it can do at best.

\b
Examples:
  headrace bench roofline --measure
  headrace bench engine --config config.json --weights int4
  headrace bench speculative MODEL --draft-model SMALL
  headrace bench serve http://127.0.0.1:8080
"""
COMMANDS = {
    "roofline": "Read bandwidth and arithmetic peaks of this machine.",
    "engine": "Prefill and decode speed of a model, from a checkpoint or from its config alone.",
    "speculative": "What guessing tokens ahead brings: by drafter, temperature and sequences at once.",
    "profile": "Where the time of a step goes, instruction by instruction.",
    "serve": "Load on any server of OpenAI's API: latencies, throughput, goodput.",
}
