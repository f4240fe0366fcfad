"""`headrace bench`: what this machine can do, and how near the engine comes to it."""

HELP = """Measure: the machine, a model on it, the parts of a step.

Every speed is also given as a share of what the machine can do at best.

\b
Examples:
  headrace bench limits --measure
  headrace bench step --config config.json --weights int4
  headrace bench speculate MODEL --draft-model SMALL
"""
COMMANDS = {
    "limits": "Read bandwidth and arithmetic peaks of this machine.",
    "step": "Prefill and decode speed of a model, from a checkpoint or from its config alone.",
    "speculate": "What guessing tokens ahead brings: by drafter, temperature and sequences at once.",
    "profile": "Where the time of a step goes, instruction by instruction.",
}
