"""`headrace bench`: the machine's limits, and how close the engine comes to them."""

HELP = """Benchmarks: this machine, a model on it, the parts of a step, a server under load.

Speeds on this machine are also shown relative to its measured limits.

\b
Examples:
  headrace bench roofline --measure
  headrace bench engine --config config.json --quantization int4
  headrace bench speculative MODEL --speculative-model SMALL
  headrace bench serve http://127.0.0.1:8080
"""
COMMANDS = {
    "roofline": "Read bandwidth and arithmetic peaks of this machine.",
    "engine": "Prefill and decode speed of a model, from a checkpoint or from its config alone.",
    "speculative": "Speed-up of speculative decoding by draft method, temperature and batch size.",
    "profile": "Time of each instruction of a step.",
    "serve": "Load test of an OpenAI-compatible server: latencies, throughput, goodput.",
}
