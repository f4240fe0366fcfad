"""`options` of a request: which reach the sampler, which have no effect here, which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from headrace.api.openai.parameters import RequestBody, body_schema
from headrace.errors import HeadraceError, InvalidRequest
from headrace.sampling.params import PARAMETERS

SAMPLING: Final[Mapping[str, str]] = {row.ollama: row.name for row in PARAMETERS.values() if row.ollama}
"""Ollama's names, and the engine's."""
# How a model is loaded is the server's business: settings of `headrace serve` decide it.
NO_EFFECT: Final[Mapping[str, tuple[object, ...]]] = dict.fromkeys(
    [
        *("numa", "num_keep", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv"),
        *("logits_all", "vocab_only", "use_mmap", "use_mlock", "num_thread"),
    ],
    (),
)
# Refused, but for the values listed, which ask for what happens anyway.
UNSUPPORTED: Final[Mapping[str, tuple[object, ...]]] = {
    "tfs_z": (1.0,),
    "penalize_newline": (True,),
    "embedding_only": (False,),
}
UNLIMITED: Final = (-1, -2)
"""Values of `num_predict` that mean: up to the context's end."""


class Options(RequestBody):
    """The options that take effect. None always means: not given."""

    no_effect: ClassVar[Mapping[str, tuple[object, ...]]] = NO_EFFECT
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = UNSUPPORTED
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    typical_p: float | None = None
    repeat_last_n: int | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    num_ctx: int | None = None
    stop: str | list[str] | None = None

    def sampling(self) -> dict[str, Any]:
        """The sampling parameters that were given, by the names of SamplingParams."""
        given: dict[str, Any] = {
            field: value for name, field in SAMPLING.items() if (value := getattr(self, name)) is not None
        }
        if given.get("seed") == -1:  # Ollama's word for a random one
            del given["seed"]
        if self.num_predict in UNLIMITED:
            del given["max_tokens"]
        elif self.num_predict is not None and self.num_predict < 1:
            raise InvalidRequest(
                f"num_predict is {self.num_predict:,}, it must be at least 1, or -1 for as many as fit",
                param="num_predict",
            )
        if self.stop is not None:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        return given


def options_schema() -> dict[str, Any]:
    """The options' entry in the OpenAPI document."""
    return {"anyOf": [body_schema(Options), {"type": "null"}]}


NAMES: Final[Mapping[str, str]] = {
    **{field: name for name, field in SAMPLING.items()},
    "logprobs": "top_logprobs",
    "context_limit": "num_ctx",
}
"""Ollama's names of parameters that have others in errors."""


def in_words_of_ollama(error: HeadraceError) -> HeadraceError:
    """An error under the parameter names that the caller gave."""
    param = error.param or ""
    if param in NAMES:
        error.message = error.message.replace(param, NAMES[param])
        error.param = NAMES[param]
    return error
