"""Sampling parameters of a request: their table, and which of them exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from headrace.errors import InvalidRequest
from headrace.sampling.parameters import Parameter, markdown, table_of

MAX_INT = 2**31 - 1
MAX_LOGIT_BIAS = 1024
MAX_TOP_LOGPROBS = 20
MAX_N = 128
MAX_STOPS = 16
MAX_STOP_TOKEN_IDS = 1024
MAX_ALLOWED_TOKEN_IDS = 2**19
MAX_BANNED = 128  # for bad_words, and for banned_strings
MAX_BREAKERS = 32


class SamplingParams(Struct, frozen=True, kw_only=True):
    """Sampling parameters of one request; `sampling/reference.py` defines their effect.

    Processors apply in llama.cpp's order: logit bias and penalties, dry, top_n_sigma, top_k, typical_p,
    top_p, min_p, xtc, temperature. Mirostat 1 or 2 replaces top_n_sigma to xtc. Temperature 0 takes the
    likeliest remaining token. `seed` None means a random seed, which is reported in the result.

    `repeat_last_n` is the number of tokens that the three penalties consider, `dry_penalty_last_n` the
    number that DRY considers; -1 means all. `bad_words` are never generated as the tokens that they encode
    to, with or without a leading space. `banned_strings` never appear in the output text, however they are
    tokenized.
    """

    temperature: Annotated[
        float,
        Parameter(
            "0 always takes the likeliest token", 0.0, 100.0, also_off=0, beams=False, ollama="temperature"
        ),
    ] = 1.0
    dynatemp_range: Annotated[
        float,
        Parameter("vary the temperature by so much with the entropy; 0 is off", 0.0, 100.0, truncates=True),
    ] = 0.0
    dynatemp_exponent: Annotated[
        float, Parameter("how the temperature follows the entropy", 0.0, 100.0, above_low=True)
    ] = 1.0
    top_n_sigma: Annotated[
        float,
        Parameter(
            "only logits within X standard deviations of the largest; 0 and -1 are off",
            -1.0,
            1000.0,
            also_off=-1,
            truncates=True,
        ),
    ] = 0.0
    top_k: Annotated[
        int,
        Parameter("only the N likeliest tokens; 0 is off", 0, MAX_INT, truncates=True, ollama="top_k"),
    ] = 0
    typical_p: Annotated[
        float,
        Parameter(
            "only the most typical tokens that sum up to X",
            0.0,
            1.0,
            above_low=True,
            truncates=True,
            ollama="typical_p",
        ),
    ] = 1.0
    top_p: Annotated[
        float,
        Parameter(
            "only the likeliest tokens that sum up to X; 0 is the likeliest alone",
            0.0,
            1.0,
            truncates=True,
            ollama="top_p",
        ),
    ] = 1.0
    min_p: Annotated[
        float,
        Parameter(
            "only tokens at least X times as likely as the likeliest",
            0.0,
            1.0,
            truncates=True,
            ollama="min_p",
        ),
    ] = 0.0
    xtc_probability: Annotated[
        float, Parameter("how often the likeliest tokens are left out", 0.0, 1.0, truncates=True)
    ] = 0.0
    xtc_threshold: Annotated[float, Parameter("from which share on a token is one of these", 0.0, 0.5)] = 0.1
    mirostat: Annotated[
        int,
        Parameter("version 1 or 2 instead of truncation; 0 is off", 0, 2, beams=False, ollama="mirostat"),
    ] = 0
    mirostat_tau: Annotated[
        float, Parameter("surprise that mirostat aims at, in bits", 0.0, 100.0, ollama="mirostat_tau")
    ] = 5.0
    mirostat_eta: Annotated[float, Parameter("how fast mirostat adapts", 0.0, 1.0, ollama="mirostat_eta")] = (
        0.1
    )
    repetition_penalty: Annotated[
        float,
        Parameter(
            "make tokens already seen less likely; 1 is off",
            0.0,
            100.0,
            above_low=True,
            beams=False,
            ollama="repeat_penalty",
            llama_cpp="repeat_penalty",
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        Parameter(
            "subtracted from the logits of generated tokens",
            -100.0,
            100.0,
            beams=False,
            ollama="presence_penalty",
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Parameter(
            "the same for each time a token was generated",
            -100.0,
            100.0,
            beams=False,
            ollama="frequency_penalty",
        ),
    ] = 0.0
    repeat_last_n: Annotated[
        int, Parameter("penalties look at the last N tokens; -1 is all", -1, MAX_INT, ollama="repeat_last_n")
    ] = -1
    dry_multiplier: Annotated[
        float, Parameter("make long repetitions less likely; 0 is off", 0.0, 100.0, beams=False)
    ] = 0.0
    dry_base: Annotated[float, Parameter("how fast that grows with each repeated token", 1.0, 100.0)] = 1.75
    dry_allowed_length: Annotated[
        int, Parameter("repetitions of fewer than N tokens are free", 1, MAX_INT)
    ] = 2
    dry_penalty_last_n: Annotated[
        int, Parameter("repetitions of the last N tokens; -1 is all", -1, MAX_INT)
    ] = -1
    dry_sequence_breakers: Annotated[
        tuple[str, ...], Parameter("no repetition reaches across TEXT", most=MAX_BREAKERS)
    ] = ("\n", ":", '"', "*")
    bad_words: Annotated[
        tuple[str, ...], Parameter("never these tokens; can be repeated", most=MAX_BANNED, beams=False)
    ] = ()
    banned_strings: Annotated[
        tuple[str, ...], Parameter("never this text; can be repeated", most=MAX_BANNED, beams=False)
    ] = ()
    logit_bias: Annotated[
        Mapping[int, float],
        Parameter(
            "add X to a token's logit; can be repeated", -100.0, 100.0, most=MAX_LOGIT_BIAS, beams=False
        ),
    ] = field(default_factory=dict[int, float])
    seed: Annotated[
        int | None,
        Parameter("same seed, same text; by default a random one", -(2**63), 2**64 - 1, ollama="seed"),
    ] = None
    n: Annotated[
        int, Parameter("number of choices; with beam search, of beams, too", 1, MAX_N, flag=None)
    ] = 1
    use_beam_search: Annotated[bool, Parameter("the n likeliest texts instead of random ones", flag=None)] = (
        False
    )
    length_penalty: Annotated[
        float,
        Parameter(
            "exponent of the length that divides the log-probability of a beam", -10.0, 10.0, flag=None
        ),
    ] = 1.0
    early_stopping: Annotated[
        bool | Literal["never"],
        Parameter(
            "end beam search with the first n texts; never: only where no better one can come", flag=None
        ),
    ] = False
    max_tokens: Annotated[
        int | None,
        Parameter(
            "most tokens to generate; by default as many as fit the context",
            1,
            MAX_INT,
            ollama="num_predict",
            llama_cpp="n_predict",
        ),
    ] = None
    min_tokens: Annotated[int, Parameter("no end before N tokens", 0, MAX_INT)] = 0
    stop: Annotated[
        tuple[str, ...],
        Parameter("end before TEXT; can be repeated", most=MAX_STOPS, beams=False, ollama="stop"),
    ] = ()
    stop_token_ids: Annotated[
        tuple[int, ...], Parameter("end at this token; can be repeated", most=MAX_STOP_TOKEN_IDS)
    ] = ()
    include_stop_str_in_output: Annotated[
        bool, Parameter("keep the stop text in the output", flag="--include-stop")
    ] = False
    ignore_eos: Annotated[bool, Parameter("go on after the model's end token")] = False
    allowed_token_ids: Annotated[
        tuple[int, ...] | None,
        Parameter("only these tokens; by default all", most=MAX_ALLOWED_TOKEN_IDS, beams=False, flag=None),
    ] = None
    logprobs: Annotated[
        int | None,
        Parameter(
            "log-probabilities of the chosen token and of N alternatives",
            0,
            MAX_TOP_LOGPROBS,
            llama_cpp="n_probs",
            flag=None,
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        Parameter("the same for the tokens of the prompt", 0, MAX_TOP_LOGPROBS, beams=False, flag=None),
    ] = None

    def __post_init__(self) -> None:
        for value, parameter in zip(astuple(self), PARAMETERS.values(), strict=True):
            if value is not parameter.default:  # most are, and these need no check for each request
                parameter.check(value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens})",
                param="min_tokens",
            )
        self._check_mirostat()
        self._check_beam_search()

    def _check_mirostat(self) -> None:
        if not self.mirostat:
            return
        if self.temperature == 0.0:
            raise InvalidRequest("mirostat needs a temperature above 0", param="mirostat")
        for name, off in _TRUNCATION.items():
            if getattr(self, name) not in off:
                raise InvalidRequest(
                    f"mirostat replaces {name} ({getattr(self, name)}): leave one of them out",
                    param="mirostat",
                )

    def _check_beam_search(self) -> None:
        if not self.use_beam_search:
            for name, off in (("length_penalty", 1.0), ("early_stopping", False)):
                if getattr(self, name) != off:
                    raise InvalidRequest(f"{name} needs use_beam_search: leave it out", param=name)
            return
        for name, values in _NOT_OF_BEAMS.items():
            if getattr(self, name) not in values:
                raise InvalidRequest(
                    f"{name} has no effect on beam search, which returns the likeliest texts: leave it out",
                    param=name,
                )


PARAMETERS: Mapping[str, Parameter] = table_of(SamplingParams)
"""The table: a row for each field of SamplingParams."""

_TRUNCATION = {name: row.off for name, row in PARAMETERS.items() if row.truncates}
_NOT_OF_BEAMS = {name: row.off for name, row in PARAMETERS.items() if not row.beams}


def with_defaults(defaults: SamplingParams, given: Mapping[str, Any]) -> SamplingParams:
    """A model's defaults overridden by the given values. Raises InvalidRequest as SamplingParams does. If
    mirostat or beam search is requested, defaults that conflict with it are dropped.
    """
    if given.get("use_beam_search"):
        given = {name: values[0] for name, values in _NOT_OF_BEAMS.items()} | dict(given)
    elif given.get("mirostat"):
        given = {name: values[0] for name, values in _TRUNCATION.items()} | dict(given)
    return replace(defaults, **given)


def parameters_table() -> str:
    """The sampling parameters as a Markdown table, for the documentation."""
    return markdown(PARAMETERS)
