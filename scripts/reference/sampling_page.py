"""The page of sampling parameters: the fields of SamplingParams, with their bounds and where they can be
given."""

from __future__ import annotations

from page_text import code, generated, sentence, table

from headrace.cli.flags import SAMPLING_FLAGS
from headrace.sampling import params
from headrace.sampling.params import SamplingParams

INTRODUCTION = """The same names in all places: fields of `/v1/completions` and `/v1/chat/completions`,
keywords of [`LLM.generate`](python.md) and its relatives, and flags of `headrace run` (`top_p` is
`--top-p`). Ollama's options and Anthropic's fields are translated to these. What is not given comes from
the model's `generation_config.json`.

The order of the chain is llama.cpp's: logit bias and penalties, `dry`, `top_n_sigma`, `top_k`, `typical_p`,
`top_p`, `min_p`, `xtc`, temperature. `mirostat` takes the place of everything from `top_n_sigma` to `xtc`.
Truncation looks at the distribution before temperature. `temperature=0` takes the likeliest token that is
left.

A value outside of its range is refused by name with both bounds. Values are checked once, before anything
is computed."""

HELP = {
    "n": "choices per prompt; with beam search also the number of beams",
    "use_beam_search": "beam search with `n` beams, by the rules of transformers' `generate`",
    "length_penalty": "beam search: exponent of the length that scores are divided by",
    "early_stopping": 'beam search: `true`, `false` or `"never"`, as in transformers',
    "allowed_token_ids": "only these tokens may be generated",
    "logprobs": "log-probability of each token, and of that many alternatives",
    "prompt_logprobs": "the same for the tokens of the prompt",
}


def page() -> str:
    """The whole page."""
    return generated(
        "Sampling parameters",
        "src/headrace/sampling/params.py",
        INTRODUCTION,
        table(["parameter", "type", "default", "range", "what it does"], [_row(name) for name in _names()]),
        "## Limits",
        table(
            ["what", "at most"],
            [(name[4:].lower().replace("_", " "), f"{getattr(params, name):,}") for name in _limits()],
        ),
    )


def _names() -> tuple[str, ...]:
    return SamplingParams.__struct_fields__


def _limits() -> list[str]:
    return [name for name in vars(params) if name.startswith("MAX_")]


def _row(name: str) -> tuple[str, ...]:
    default = getattr(SamplingParams(), name)
    flags = {flag.name: str(flag.option.help) for flag in SAMPLING_FLAGS}
    text = flags.get(name) or HELP[name]
    flag = "" if name in flags else "<br>*no flag*"
    return code(name), _type(name), code(repr(default)), _range(name), sentence(text) + "." + flag


def _type(name: str) -> str:
    return code(SamplingParams.__annotations__[name])


def _range(name: str) -> str:
    if name not in params._RANGES:  # pyright: ignore[reportPrivateUsage]
        return ""
    low, high = params._RANGES[name]  # pyright: ignore[reportPrivateUsage]
    bracket = "(" if name in params._OPEN else "["  # pyright: ignore[reportPrivateUsage]
    return f"{bracket}{low:g}, {'∞' if high >= 2**31 - 1 else f'{high:g}'}]"
