"""`options` of a request: which reach the sampler, which have no effect here, which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from msgspec import Meta, defstruct

from headrace.api.http.body import RequestBody, Values
from headrace.api.http.sampling_fields import given_sampling, sampling_fields
from headrace.errors import HeadraceError, InvalidRequest
from headrace.sampling.params import PARAMETERS

SAMPLING: Final[Mapping[str, str]] = {row.ollama: row.name for row in PARAMETERS.values() if row.ollama}
"""Ollama's names, and the engine's."""
# How a model is loaded is the server's business: settings of `headrace serve` decide it.
NO_EFFECT: Final[Mapping[str, Values]] = dict.fromkeys(
    [
        *("numa", "num_keep", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv"),
        *("logits_all", "vocab_only", "use_mmap", "use_mlock", "num_thread"),
    ],
    (),
)
# Refused, but for the values listed, which ask for what happens anyway.
UNSUPPORTED: Final[Mapping[str, Values]] = {
    "tfs_z": (1.0,),
    "penalize_newline": (True,),
    "embedding_only": (False,),
}
UNLIMITED: Final = (-1, -2)
"""Values of `num_predict` that mean: up to the context's end."""
PREDICTED: Final = {"anyOf": [{"enum": list(UNLIMITED)}, {"minimum": 1}]}


if TYPE_CHECKING:
    SamplingOptions = RequestBody
else:  # with an option for each sampling parameter that has a name there
    SamplingOptions = defstruct(
        "SamplingOptions", sampling_fields(SAMPLING), bases=(RequestBody,), kw_only=True
    )


class Options(SamplingOptions):
    """The options that take effect. None always means: not given."""

    no_effect: ClassVar[Mapping[str, Values]] = NO_EFFECT
    unsupported: ClassVar[Mapping[str, Values]] = UNSUPPORTED
    num_predict: Annotated[int, Meta(extra_json_schema=PREDICTED)] | None = None
    num_ctx: Annotated[int, Meta(extra_json_schema={"minimum": 1})] | None = None

    def sampling(self) -> dict[str, Any]:
        """The sampling parameters that were given, by the names of SamplingParams."""
        given = given_sampling(self, SAMPLING)
        if given.get("seed") == -1:  # Ollama's word for a random one
            del given["seed"]
        if self.num_predict in UNLIMITED:
            del given["max_tokens"]
        elif self.num_predict is not None and self.num_predict < 1:
            raise InvalidRequest(
                f"num_predict is {self.num_predict:,}, it must be at least 1, or -1 for as many as fit",
                param="num_predict",
            )
        return given


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
