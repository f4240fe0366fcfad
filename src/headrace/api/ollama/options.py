"""`options` of a request: which reach the sampler, which have no effect here, which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from headrace.api.openai.parameters import RequestBody, body_schema
from headrace.errors import ContextLengthExceeded, InvalidRequest
from headrace.sampling.params import PARAMETERS, SamplingParams, with_defaults

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

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

    def sampling(self, model: LoadedModel, prompt_tokens: int, *, top_logprobs: int | None) -> SamplingParams:
        """Sampling parameters over the model's defaults, for a prompt of so many tokens.

        Raises InvalidRequest that names the option, ContextLengthExceeded where the prompt leaves no room
        within `num_ctx`.
        """
        given: dict[str, Any] = {
            field: value for name, field in SAMPLING.items() if (value := getattr(self, name)) is not None
        }
        if given.get("seed") == -1:  # Ollama's word for a random one
            del given["seed"]
        given |= {"max_tokens": self._answer_tokens(model.context_length, prompt_tokens)}
        if self.stop is not None:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if top_logprobs is not None:
            given["logprobs"] = top_logprobs
        try:
            return with_defaults(model.defaults, given)
        except InvalidRequest as error:
            raise _in_words_of_ollama(error) from None

    def _answer_tokens(self, context_length: int, prompt_tokens: int) -> int | None:
        """How many tokens the answer may have at most; None: up to the model's context."""
        asked = None if self.num_predict in UNLIMITED else self.num_predict
        if asked is not None and asked < 1:
            raise InvalidRequest(
                f"num_predict is {asked:,}, it must be at least 1, or -1 for as many as fit",
                param="num_predict",
            )
        limit = context_length if self.num_ctx is None else self.num_ctx
        if not 1 <= limit <= context_length:
            raise InvalidRequest(
                f"num_ctx is {limit:,}, the model is loaded with a context of {context_length:,} "
                f"tokens: send at most that, or start the server with a larger --max-model-len",
                param="num_ctx",
            )
        if self.num_ctx is not None and prompt_tokens >= limit:
            raise ContextLengthExceeded(
                f"prompt has {prompt_tokens:,} tokens, num_ctx is {limit:,}: shorten it, or raise that",
                param="num_ctx",
            )
        room = limit - prompt_tokens
        if self.num_ctx is None and (asked is None or room < 1):
            return asked  # the engine's door knows the context
        return room if asked is None else min(asked, room)


def options_schema() -> dict[str, Any]:
    """The options' entry in the OpenAPI document."""
    return {"anyOf": [body_schema(Options), {"type": "null"}]}


def _in_words_of_ollama(error: InvalidRequest) -> InvalidRequest:
    """An error of the sampler's parameters under the name that the caller gave."""
    names = {field: name for name, field in SAMPLING.items()} | {"logprobs": "top_logprobs"}
    param = error.param or ""
    name = names.get(param, param)
    return InvalidRequest(error.message.replace(param, name, 1), param=name, code=error.code)
