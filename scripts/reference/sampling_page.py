"""The page of sampling parameters: the fields of SamplingParams, with their bounds and where they can be
given."""

from __future__ import annotations

from page_text import code, generated, sentence, table

from headrace.sampling import params
from headrace.sampling.parameters import Parameter
from headrace.sampling.params import PARAMETERS

INTRODUCTION = """The same names in all places: fields of `/v1/completions` and `/v1/chat/completions`,
keywords of [`LLM.generate`](python.md) and its relatives, and flags of `headrace run` (`top_p` is
`--top-p`). Ollama's options and Anthropic's fields are translated to these. What is not given comes from
the model's `generation_config.json`.

The order of the chain is llama.cpp's: logit bias and penalties, `dry`, `top_n_sigma`, `top_k`, `typical_p`,
`top_p`, `min_p`, `xtc`, temperature. `mirostat` takes the place of everything from `top_n_sigma` to `xtc`.
Truncation looks at the distribution before temperature. `temperature=0` takes the likeliest token that is
left. Every API takes temperatures up to 100: OpenAI's own server stops at 2 and Anthropic's at 1, but clients
of other servers send more, which makes sense where `min_p` or `top_n_sigma` has cut the distribution before.

A value outside of its range is refused by name with both bounds. Values are checked once, before anything
is computed."""


def page() -> str:
    """The whole page."""
    limits = [(name[4:].lower().replace("_", " "), f"{getattr(params, name):,}") for name in _limits()]
    return generated(
        "Sampling parameters",
        "src/headrace/sampling/params.py",
        INTRODUCTION,
        table(["parameter", "type", "default", "range", "what it does"], map(_row, PARAMETERS.values())),
        "## Limits",
        table(["what", "at most"], limits),
    )


def _limits() -> list[str]:
    return [name for name in vars(params) if name.startswith("MAX_") and name != "MAX_INT"]


def _row(parameter: Parameter) -> tuple[str, ...]:
    notes = []
    if parameter.flag is None:
        notes.append("no flag")
    elif parameter.flag != "--" + parameter.name.replace("_", "-"):
        notes.append(f"flag `{parameter.flag}`")
    if parameter.ollama not in (None, parameter.name):
        notes.append(f"Ollama: `{parameter.ollama}`")
    ends = f"<br>*{', '.join(notes)}*" if notes else ""
    kind = f"{parameter.kind} or none" if parameter.optional else parameter.kind
    bounds = parameter.range.replace(str(-(2**63)), "-2⁶³").replace(str(2**64 - 1), "2⁶⁴-1")
    bounds = bounds.replace(str(params.MAX_INT), "∞").replace(".0", "")
    return (
        code(parameter.name),
        kind,
        code(repr(parameter.default)),
        bounds,
        sentence(parameter.help) + "." + ends,
    )
