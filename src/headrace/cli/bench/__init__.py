"""`headrace bench`: the machine's limits, and how close the engine comes to them."""

HELP = """Benchmarks: this machine, a model on it, the parts of a step, a server under load.

Speeds on this machine are also shown relative to its measured limits.

\b
Examples:
  headrace bench roofline
  headrace bench engine mini
  headrace bench engine --config config.json --quantization int4
  headrace bench speculative mini
  headrace bench serve http://127.0.0.1:8080
  headrace bench quality mini --quantization int4
  headrace bench savings
  headrace bench endpoints endpoints.toml
"""
COMMANDS = {
    "roofline": "Read bandwidth and arithmetic peaks of this machine.",
    "engine": "Prefill and decode speed of a model, or of a config alone.",
    "speculative": "Speed-up of speculative decoding by draft method.",
    "profile": "Time of each instruction of a step.",
    "quality": "What a quantized form of a model loses against it.",
    "savings": "What each layer saves of the bill of recorded traffic.",
    "serve": "Load test of any OpenAI-compatible server.",
    "endpoints": "Endpoints over time: speed, errors, price, quality, honesty.",
}
