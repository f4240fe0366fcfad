"""`headrace eval`: what models answer, scored."""

HELP = """Score what models answer.

`run` takes a suite of cases in YAML, and compares models or versions; `rows` takes an entry of [evals] of
headrace.toml, whose rows are SQL over datasets. The word `rows` may be left out.

\b
Examples:
  headrace eval run refunds.yaml --model mini
  headrace eval run refunds.yaml --model Qwen/Qwen3-0.6B --model Qwen/Qwen3-4B --json
  headrace eval topics
"""
COMMANDS = {
    "run": "Run a suite of cases, and compare models.",
    "rows": "Score what models answer to rows of datasets.",
}
DEFAULT = "rows"
FOLDER = "headrace.cli.evaluation"
