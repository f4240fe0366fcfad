"""The fields of llama.cpp's bodies that say how tokens are drawn, and their names in errors and replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import defstruct

from headrace.api.http.body import RequestBody
from headrace.api.http.sampling_fields import sampling_fields
from headrace.errors import HeadraceError, InvalidRequest
from headrace.sampling.params import PARAMETERS, SamplingParams
from headrace.tokenization.tokenizer import Tokenizer

_OWN: Final = frozenset({"logit_bias", "max_tokens", "logprobs", "use_beam_search", "prompt_logprobs"})
SAMPLING: Final[Mapping[str, str]] = {
    row.llama_cpp: row.name for row in PARAMETERS.values() if row.name not in _OWN
}
"""llama.cpp's names of parameters that are read as the table has them, and the engine's."""
NAMES: Final[Mapping[str, str]] = {
    row.name: row.llama_cpp for row in PARAMETERS.values() if row.llama_cpp != row.name
}
ORDER: Final[Mapping[str, Mapping[str, object]]] = {
    "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {},
}
"""The samplers in the order in which they always apply, with the values that switch each one off."""
_ALIASES: Final = {"typical_p": "typ_p"}
BIAS_OF_NEVER: Final = -100.0

if TYPE_CHECKING:
    SamplingFields = RequestBody
else:  # with a field for each sampling parameter
    SamplingFields = defstruct(
        "SamplingFields", sampling_fields(SAMPLING), bases=(RequestBody,), kw_only=True
    )


def without_samplers(names: Sequence[str]) -> dict[str, object]:
    """What switches off the samplers that `names` leaves out; InvalidRequest for another order than ours."""
    wanted = [_ALIASES.get(name, name) for name in names]
    if wanted != [name for name in ORDER if name in wanted]:
        raise InvalidRequest(
            f"samplers is {', '.join(names)[:200]!r}: samplers can be left out, but those that apply "
            f"are always in the order {', '.join(ORDER)}",
            param="samplers",
            code="unsupported_parameter",
        )
    return {key: value for name, off in ORDER.items() if name not in wanted for key, value in off.items()}


def token_biases(value: object, tokenizer: Tokenizer) -> dict[int, float]:
    """`logit_bias` by token, from pairs or an object of token ids or texts; false means never."""
    if isinstance(value, dict):
        value = [list(pair) for pair in cast("Mapping[str, object]", value).items()]
    if not isinstance(value, list):
        raise _bad_bias(value)
    found: dict[int, float] = {}
    for entry in cast("list[object]", value):
        pair = cast("list[object]", entry) if isinstance(entry, list) else []
        if len(pair) != 2:
            raise _bad_bias(cast("object", entry))
        key, bias = pair
        if bias is False:
            bias = BIAS_OF_NEVER
        if not isinstance(bias, int | float) or isinstance(bias, bool):
            raise _bad_bias(pair)
        found |= dict.fromkeys(_tokens(key, tokenizer), float(bias))
    return found


def _tokens(key: object, tokenizer: Tokenizer) -> list[int]:
    if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10:
        return [int(key)]
    if isinstance(key, str):
        return tokenizer.encode(key[:1000], add_special=False, parse_special=False)
    if isinstance(key, int) and not isinstance(key, bool):
        return [key]
    raise _bad_bias(key)


def _bad_bias(value: object) -> InvalidRequest:
    return InvalidRequest(
        f"logit_bias has {str(value)[:80]!r}: it is a list of pairs [token id or text, bias or false], or an "
        "object from these to biases",
        param="logit_bias",
        code="invalid_type",
    )


def settings_of(params: SamplingParams, eos_ids: Sequence[int]) -> dict[str, Any]:
    """`generation_settings`: every sampling parameter in effect, by llama.cpp's names."""
    biases: list[dict[str, float | None]] = [
        {"token": token, "bias": bias} for token, bias in params.logit_bias.items()
    ]
    if params.ignore_eos:
        biases.extend({"token": token, "bias": None} for token in eos_ids)
    own = {
        "n_predict": -1 if params.max_tokens is None else params.max_tokens,
        "n_probs": params.logprobs or 0,
        "logit_bias": biases,
        "samplers": list(ORDER),
        "adaptive_target": -1.0,  # this sampler does not exist here: it is off
        "adaptive_decay": 0.0,
        "n_keep": 0,
        "n_discard": 0,
        "min_keep": 0,
        "lora": [],
        "post_sampling_probs": False,
    }
    return {name: getattr(params, field) for name, field in SAMPLING.items()} | own


def in_words_of_llama_cpp(error: HeadraceError) -> HeadraceError:
    """An error under the parameter names that the caller gave."""
    param = error.param or ""
    if param in NAMES:
        error.message = error.message.replace(param, NAMES[param])
        error.param = NAMES[param]
    return error
