"""The body of llama.cpp's completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from msgspec import Meta

from headrace.api.http.body import Json, Values, loose
from headrace.api.http.sampling_fields import given_sampling
from headrace.api.llama_cpp.prompts import LLAMA_PROMPTS, read_llama_prompts
from headrace.api.llama_cpp.sampling import SAMPLING, SamplingFields, token_biases, without_samplers
from headrace.api.llama_cpp.schema import LlamaCompletion
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint, schema_constraint
from headrace.inference.requests import CompletionRequest
from headrace.sampling.params import MAX_TOP_LOGPROBS

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

NO_EFFECT: Final[Mapping[str, Values]] = {
    "id_slot": (-1,),
    "n_keep": (0,),
    "n_discard": (0,),
    "min_keep": (0,),
    "t_max_prompt_ms": (-1, 0),
    "return_progress": (False,),
    "n_cache_reuse": (0,),
    "backend_sampling": (),
    "verbose": (False,),
    "penalize_nl": (False,),
    "speculative.n_max": (),
    "speculative.n_min": (),
    "speculative.p_min": (),
}
UNSUPPORTED: Final[Mapping[str, Values]] = {
    "lora": ([],),
    "image_data": ([],),
    "n_indent": (0,),
    "t_max_predict_ms": (-1, 0),
    "post_sampling_probs": (False,),
    "adaptive_target": (-1, -1.0),
    "adaptive_decay": (),
    "grammar_lazy": (False,),
    "grammar_triggers": ([],),
    "preserved_tokens": ([],),
    "preserve_tokens": ([],),
}
PREDICTED: Final[Json] = {
    "anyOf": [{"const": -1}, {"minimum": 1}],
    "description": "Most tokens to generate; -1, as if it were not given: as many as fit the context.",
}
_BIASES: Final[Json] = {"type": ["array", "object"]}
FIELDS: Final = frozenset(LlamaCompletion.__struct_fields__)


class GenerationBody(SamplingFields, kw_only=True):
    """The fields that both generating endpoints take."""

    no_effect: ClassVar[Mapping[str, Values]] = NO_EFFECT
    unsupported: ClassVar[Mapping[str, Values]] = UNSUPPORTED
    model: str | None = None
    n_predict: Annotated[int, Meta(extra_json_schema=PREDICTED)] | None = None
    max_tokens: Annotated[int, Meta(extra_json_schema=PREDICTED)] | None = None
    stream: bool | None = None
    cache_prompt: bool | None = None
    n_probs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    logit_bias: Annotated[Any, loose(_BIASES)] = None
    samplers: list[str] | None = None
    grammar: str | None = None
    json_schema: Annotated[Any, loose({"type": ["object", "boolean"]})] = None
    timings_per_token: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None

    def request_of(
        self, reply_id: str, model: LoadedModel, prompt: object, suffix: str | None = None
    ) -> CompletionRequest:
        """The request that this body stands for. It makes tokens: not for the event loop."""
        return CompletionRequest(
            id=reply_id,
            model=model.name,
            cache_key=reply_id if self.cache_prompt is False else None,
            prompts=read_llama_prompts(prompt, model.tokenizer),
            suffix=suffix,
            sampling=self._sampling(model),
            constraint=self._constraint(),
            fit_context=True,
            show_prompt=True,
        )

    def _sampling(self, model: LoadedModel) -> dict[str, Any]:
        given = given_sampling(self, SAMPLING)
        if self.samplers is not None:
            given |= without_samplers(self.samplers)
        if self.logit_bias is not None:
            given["logit_bias"] = token_biases(self.logit_bias, model.tokenizer)
        if given.get("seed") in (-1, 2**32 - 1):  # llama.cpp's words for a random one
            given["seed"] = None
        if self.n_probs:
            given["logprobs"] = self.n_probs
        name, most = ("n_predict", self.n_predict)
        if most is None:
            name, most = ("max_tokens", self.max_tokens)
        if most == -1:
            given["max_tokens"] = None
        elif most is not None and most < 1:
            raise InvalidRequest(
                f"{name} is {most:,}, it must be at least 1, or -1 for as many as fit the context", param=name
            )
        elif most is not None:
            given["max_tokens"] = most
        return given

    def _constraint(self) -> Constraint | None:
        if self.grammar and self.json_schema is not None:
            raise InvalidRequest(
                "grammar and json_schema both say what the output must match: send one", param="grammar"
            )
        if self.grammar:
            return Constraint("ebnf", self.grammar, param="grammar")
        return None if self.json_schema is None else schema_constraint(self.json_schema, param="json_schema")

    def check_fields(self) -> None:
        """InvalidRequest for a field of the reply that does not exist."""
        for field in self.response_fields or []:
            if field.partition("/")[0] not in FIELDS:
                raise InvalidRequest(
                    f"response_fields has {field[:80]!r}, replies have no such field", param="response_fields"
                )


class CompletionBody(GenerationBody, kw_only=True):
    """The body of a completion in llama.cpp's words."""

    prompt: Annotated[Any, Meta(extra_json_schema=LLAMA_PROMPTS)]
