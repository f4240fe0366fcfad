"""Fields that OpenAI's generating endpoints share: what takes effect, what is refused, what only warns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, defstruct

from headrace.api.http.body import (
    CacheField,
    GuardNames,
    RequestBody,
    RouteBody,
    SloBody,
    Values,
    cache_use,
    converted,
    guard_names,
    loose,
    without_effect,
)
from headrace.api.http.sampling_fields import given_sampling, sampling_fields
from headrace.api.openai.response_format import (
    GUIDED,
    RESPONSE_FORMAT,
    SCHEMA_OR_TEXT,
    SQL,
    STRUCTURED_OUTPUTS,
    constraint_of,
)
from headrace.engine.turns import Tier, tier_of
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint
from headrace.inference.call_context import CallContext
from headrace.inference.events import ParameterWarning
from headrace.inference.requests import CacheUse, Truncation
from headrace.inference.urgency import TIER_PRIORITY, ServiceTier, urgency
from headrace.sampling.params import PARAMETERS

NO_EFFECT: Mapping[str, Values] = {
    "user": (),
    "metadata": ({},),
    "store": (False,),
    "safety_identifier": (),
    "prompt_cache_retention": (),
    "prompt_cache_options": (),
    "verbosity": (),
    "reasoning_effort": (),
    "parallel_tool_calls": (),
    # of llama.cpp's server
    "id_slot": (-1,),
    "cache_prompt": (True,),
    "timings_per_token": (False,),
    "return_progress": (False,),
    "verbose": (False,),
}
UNSUPPORTED: Mapping[str, Values] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "moderation": (),
    "web_search_options": (),
    "logits_processors": ([],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "thinking_token_budget": (),
    "thinking_budget": (),
    "min_thinking_tokens": (),
    "thinking_continuation": (),
    "reasoning": ({},),
    "chat_template": (),
    "documents": ([],),
    "suffix": ("",),
}
CLOSED_OBJECTS = (
    "Objects of schemas that list properties have no others, unless the schema itself has "
    "additionalProperties or unevaluatedProperties. The default is true; false gives JSON Schema's meaning."
)
FINISHED = (
    "When few tokens are left, an output that follows a grammar (a schema, tools, SQL) takes a short way to "
    "its end, so that it is whole within max_tokens: finish_reason is then stop, and stop_reason "
    "finish_within_max_tokens. The default is false: what does not end in time is cut off."
)
TOOL_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
_FUNCTION = {"type": "object", "properties": {"name": TOOL_NAME}, "required": ["name"]}
TOOLS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "function"}, "function": _FUNCTION},
        "required": ["type", "function"],
        "additionalProperties": False,
    },
}
# `logprobs` means something else to each endpoint.
SAMPLING = {name: name for name in PARAMETERS if name != "logprobs"}

Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
Deadline = Annotated[float, Meta(gt=0)]
TokenLimit = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
TruncationSide = Literal["left", "right"]


class StreamOptions(Struct, frozen=True):
    """`stream_options` of a request. With `continuous_usage_stats`, which needs `include_usage` as in vLLM,
    each chunk has the counts of its choice so far."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


STREAM_OPTIONS = {
    "type": "object",
    "description": "Other members than these have no effect.",
    "properties": {name: {"type": ["boolean", "null"]} for name in StreamOptions.__struct_fields__},
}

if TYPE_CHECKING:  # the fields that are read by name

    class SamplingBody(RequestBody):
        """A body with a field for each sampling parameter."""

        n: int | None = None
        max_tokens: int | None = None
        prompt_logprobs: int | None = None
        use_beam_search: bool | None = None

else:
    SamplingBody = defstruct(
        "SamplingBody",
        sampling_fields(SAMPLING),
        bases=(RequestBody,),
        kw_only=True,
        namespace={"__doc__": "A body with a field for each sampling parameter."},
    )


def truncation_of(limit: int | None, side: TruncationSide) -> Truncation | None:
    """What vLLM's `truncate_prompt_tokens` asks for; InvalidRequest for 0."""
    if limit == 0:
        raise InvalidRequest(
            "truncate_prompt_tokens is 0: send at least 1, or -1 for what fits the model's context",
            param="truncate_prompt_tokens",
        )
    if limit is None:
        return None
    return Truncation(limit if limit > 0 else None, side, "truncate_prompt_tokens")


def side_alone() -> InvalidRequest:
    """Says that `truncation_side` needs a length."""
    return InvalidRequest(
        "truncation_side goes with truncate_prompt_tokens: send both or none", param="truncation_side"
    )


def granted_tier(priority: int, call: CallContext) -> str:
    """The service tier of a request that asks for `priority`."""
    if call.ordered_elsewhere:
        return "default"
    tiers = {Tier.INTERACTIVE: "priority", Tier.STANDARD: "default", Tier.BATCH: "flex"}
    return tiers[tier_of(call.account.bounded_priority(priority))]


class GenerationBody(SamplingBody):
    """The fields that OpenAI's generating endpoints take."""

    no_effect: ClassVar[Mapping[str, Values]] = NO_EFFECT
    unsupported: ClassVar[Mapping[str, Values]] = UNSUPPORTED
    model: str | None = None
    stream: bool | None = None
    stream_options: Annotated[dict[str, Any], Meta(extra_json_schema=STREAM_OPTIONS)] | None = None
    priority: Priority | None = None
    service_tier: ServiceTier | None = None
    deadline_s: Deadline | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=1024)] | None = None
    response_format: Annotated[Any, loose(RESPONSE_FORMAT)] = None
    structured_outputs: Annotated[Any, loose(STRUCTURED_OUTPUTS)] = None
    guided_json: Annotated[Any, loose(SCHEMA_OR_TEXT)] = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Meta(min_length=1)] | None = None
    guided_grammar: str | None = None
    guided_sql: Annotated[Any, loose(SQL)] = None
    disable_additional_properties: Annotated[bool, Meta(description=CLOSED_OBJECTS)] | None = None
    finish_within_max_tokens: Annotated[bool, Meta(description=FINISHED)] | None = None
    slo: SloBody | None = None
    route: RouteBody | None = None
    guard: GuardNames = None
    cache: CacheField = None
    truncate_prompt_tokens: TokenLimit | None = None
    truncation_side: TruncationSide | None = None
    grammar: str | None = None
    json_schema: Annotated[Any, loose(SCHEMA_OR_TEXT)] = None

    @property
    def urgency(self) -> int:
        """The engine's priority: the one that was given, or that of the service tier."""
        if self.service_tier not in TIER_PRIORITY:
            return self.priority or 0
        return urgency(self.priority, self.service_tier)

    def sampling(self, **more: Any) -> dict[str, Any]:
        """The sampling parameters that were given, by the names of SamplingParams; `more` come over them."""
        for name in ("prompt_logprobs", "use_beam_search"):
            if self.stream and getattr(self, name) not in (None, False):
                raise InvalidRequest(f"{name} cannot be streamed: leave one out", param=name)
        return given_sampling(self, SAMPLING) | more

    @property
    def tier_priority(self) -> int | None:
        """The priority where a service tier is asked for, which the reply then names."""
        return None if self.service_tier is None else self.urgency

    @property
    def guards(self) -> tuple[str, ...]:
        """The guards that are named."""
        return guard_names(self.guard)

    @property
    def cache_use(self) -> CacheUse:
        """What the response cache may do."""
        return cache_use(self.cache)

    @property
    def truncation(self) -> Truncation | None:
        """How prompts are cut: to their last tokens, unless `truncation_side` is right."""
        if self.truncation_side is not None and self.truncate_prompt_tokens is None:
            raise side_alone()
        return truncation_of(self.truncate_prompt_tokens, self.truncation_side or "left")

    def constraint(self, *, after: str | None = None) -> Constraint | None:
        """What the output must match, after the text `after`; from whichever parameter for it was given."""
        given = {
            name: value
            for name in ("response_format", "structured_outputs", *GUIDED)
            if (value := getattr(self, name)) is not None
        }
        return constraint_of(given, after)

    def warnings(self) -> list[ParameterWarning]:
        """Warnings for values without effect; raises InvalidRequest for what contradicts itself."""
        if self.stream_options is None:
            return []
        options = self.streaming
        if not self.stream:
            raise InvalidRequest("stream_options needs stream: true", param="stream_options")
        idle = {name: "" for name in self.stream_options if name not in StreamOptions.__struct_fields__}
        if options.include_obfuscation:
            idle["include_obfuscation"] = ""
        if options.continuous_usage_stats and not options.include_usage:
            idle["continuous_usage_stats"] = "it needs include_usage: true"
        return [without_effect(f"stream_options.{name[:80]}", why) for name, why in idle.items()]

    @property
    def streaming(self) -> StreamOptions:
        """What a stream holds besides the answer; raises InvalidRequest."""
        return converted(StreamOptions, self.stream_options or {}, place="stream_options")
