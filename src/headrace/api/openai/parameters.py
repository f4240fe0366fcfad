"""Parameters of a generation: what takes effect, what is refused, what is accepted with a warning."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from starlette.requests import Request as HttpRequest

from headrace.api.http.call_context import call_of
from headrace.api.http.openapi import request_body
from headrace.api.http.request_body import read_body
from headrace.api.http.unique_keys import refuse_duplicate_keys
from headrace.api.openai.response_format import (
    GUIDED,
    RESPONSE_FORMAT,
    SCHEMA_OR_TEXT,
    STRUCTURED_OUTPUTS,
    constraint_of,
)
from headrace.api.service import get_service
from headrace.config.names import nearest
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint
from headrace.inference.call_context import CallContext
from headrace.inference.events import ParameterWarning
from headrace.sampling.params import MAX_LOGIT_BIAS, MAX_N, PARAMETERS

LARGE_BODY_BYTES = 256 * 1024

# Accepted from clients that send them as a matter of course; each given one stands in `warnings`, but
# for the values listed, which ask for what happens anyway.
NO_EFFECT: Mapping[str, tuple[object, ...]] = {
    "user": (),
    "metadata": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "safety_identifier": (),
    "prompt_cache_retention": (),
    "prompt_cache_options": (),
    "verbosity": (),
    "reasoning_effort": (),
    "parallel_tool_calls": (),
}

# Known and not built yet: refused, but for the values listed, which ask for what happens anyway.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
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
    "truncate_prompt_tokens": (),
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

_OF_OTHER_TYPE = ("stop", "logit_bias", "logprobs")  # in bodies; translated one by one
_BUILDING = threading.Lock()
Body = TypeVar("Body", bound="RequestBody")
Parsed = TypeVar("Parsed", bound=BaseModel)


class StreamOptions(BaseModel):
    """`stream_options` of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class RequestBody(BaseModel):
    """A body whose unknown fields are refused; a surface lists those that it knows without use for them."""

    model_config = ConfigDict(extra="allow", strict=True, defer_build=True)
    no_effect: ClassVar[Mapping[str, tuple[object, ...]]] = NO_EFFECT
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = UNSUPPORTED

    def warnings(self) -> list[ParameterWarning]:
        """Warnings for fields without effect; raises InvalidRequest for one that cannot be honored."""
        found: list[ParameterWarning] = []
        for name, value in (self.model_extra or {}).items():
            if name not in self.no_effect and name not in self.unsupported:
                known = [*type(self).model_fields, *self.no_effect, *self.unsupported]
                close = nearest(name, known) if len(nearest(name, known)) < 80 else ""
                raise InvalidRequest(
                    f"unknown parameter {name[:80]!r}{close}", param=name[:80], code="unknown_parameter"
                )
            if value is None or _is_one_of(value, self.no_effect.get(name, ())):
                continue
            if name in self.unsupported:
                if _is_one_of(value, self.unsupported[name]):
                    continue
                raise InvalidRequest(
                    f"{name} is not supported yet, leave it out", param=name, code="unsupported_parameter"
                )
            found.append(ParameterWarning(name, f"{name} was accepted and has no effect"))
        return found


def _is_one_of(value: object, values: tuple[object, ...]) -> bool:
    """Whether it is one of them as JSON: 0 is not false."""
    return any(type(value) is type(one) and value == one for one in values)


class GenerationBody(RequestBody):
    """The fields that OpenAI's generating endpoints take. None always means: not given."""

    model: str | None = None
    stream: bool | None = None
    stream_options: Annotated[StreamOptions, WithJsonSchema({"type": "object"})] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    repeat_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    dry_sequence_breakers: list[str] | None = None
    bad_words: list[str] | None = None
    banned_strings: list[str] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_LOGIT_BIAS)] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=1024)] | None = None
    allowed_token_ids: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    response_format: Annotated[Any, WithJsonSchema(RESPONSE_FORMAT)] = None
    structured_outputs: Annotated[Any, WithJsonSchema(STRUCTURED_OUTPUTS)] = None
    guided_json: Annotated[Any, WithJsonSchema(SCHEMA_OR_TEXT)] = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1)] | None = None
    guided_grammar: str | None = None

    def sampling(self, **more: Any) -> dict[str, Any]:
        """The sampling parameters that were given, by the names of SamplingParams; `more` come over them."""
        for name in ("prompt_logprobs", "use_beam_search"):
            if self.stream and getattr(self, name) not in (None, False):
                raise InvalidRequest(f"{name} cannot be streamed: leave one out", param=name)
        given: dict[str, Any] = {}
        for name, row in PARAMETERS.items():
            value = None if name in _OF_OTHER_TYPE else getattr(self, name, None)
            if value is not None:
                given[name] = tuple(value) if row.is_list else value
        if self.stop is not None:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.logit_bias is not None:
            given["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        return given | more

    def constraint(self, *, after: str | None = None) -> Constraint | None:
        """What the output must match, after the text `after`; from whichever parameter for it was given."""
        given = {
            name: value
            for name in ("response_format", "structured_outputs", *GUIDED)
            if (value := getattr(self, name)) is not None
        }
        return constraint_of(given, after)

    def warnings(self) -> list[ParameterWarning]:
        """Warnings for fields without effect; raises InvalidRequest for one that cannot be honored."""
        found = super().warnings()
        if self.stream_options is not None:
            if not self.stream:
                raise InvalidRequest("stream_options needs stream: true", param="stream_options")
            if self.stream_options.include_obfuscation:
                name = "stream_options.include_obfuscation"
                found.append(ParameterWarning(name, f"{name} was accepted and has no effect"))
        return found

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


def _token_id(key: str) -> int:
    if not key.isascii() or not key.isdecimal() or len(key) > 10:
        raise InvalidRequest(
            f'logit_bias has the key {key[:40]!r}: keys are token ids such as "42"', param="logit_bias"
        )
    return int(key)


async def read_parameters(kind: type[Body], http: HttpRequest) -> Body:
    """The body of `http`, checked; its warnings are the call's. Large ones are parsed off the event loop."""
    data, call = await read_body(http), call_of(http)
    if len(data) > LARGE_BODY_BYTES:
        return await get_service(http).run_in_thread(lambda: checked_body(kind, data, call))
    return checked_body(kind, data, call)


def checked_body(kind: type[Body], data: bytes, call: CallContext) -> Body:
    """A body from its JSON, with its warnings among the call's."""
    body = parse_body(kind, data)
    call.warnings += body.warnings()
    return body


def json_schema(kind: type[RequestBody]) -> dict[str, Any]:
    """The request body's entry in the OpenAPI document."""
    return request_body(lambda: body_schema(kind))


def body_schema(kind: type[RequestBody]) -> dict[str, Any]:
    """The schema of a body: unknown fields are refused, some have no effect."""
    schema = kind.model_json_schema(ref_template=f"#/components/schemas/{kind.__name__}_{{model}}")
    idle: dict[str, Any] = {name: {"description": "Has no effect."} for name in kind.no_effect}
    refused: dict[str, Any] = {
        name: {"description": "Not supported yet: any other value is refused.", "enum": [None, *values]}
        for name, values in kind.unsupported.items()
    }
    known = {name: _or_null(entry) for name, entry in schema["properties"].items()}
    schema["properties"] = idle | refused | known
    schema["additionalProperties"] = False
    return schema


def _or_null(entry: dict[str, Any]) -> dict[str, Any]:
    """A field's schema, with null for one that may be left out: that means the same."""
    kinds = [entry, *entry.get("anyOf", [])]
    nullable = any("null" in (kind.get("type") or ()) for kind in kinds)
    if nullable or "default" not in entry or entry["default"] is not None:
        return entry
    if isinstance(entry.get("type"), str) and not {"enum", "const"} & entry.keys():
        return entry | {"type": [entry["type"], "null"]}
    said = {name: entry[name] for name in ("title", "description", "default") if name in entry}
    bare = {name: value for name, value in entry.items() if name not in said}
    return said | {"anyOf": [bare, {"type": "null"}]}


def parse_body(kind: type[Parsed], body: bytes) -> Parsed:
    """A request body from its JSON; raises InvalidRequest that names the first bad field.

    msgspec parses: it holds the interpreter lock for a tenth of the time that pydantic's parser needs.
    """
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}", code="invalid_json") from None
    refuse_duplicate_keys(body)
    return validated(kind, content)


def validated(kind: type[Parsed], content: object) -> Parsed:
    """A checked body, or an object inside one; InvalidRequest names the first bad field."""
    if not kind.__pydantic_complete__:  # built when it is first needed, by one thread
        with _BUILDING:
            kind.model_rebuild()
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = ".".join(str(part) for part in first["loc"][:1]) or None
        place = ".".join(map(str, first["loc"])) or "the body"
        found = f", not {first['input']!r:.60}" if first["type"] == "literal_error" else ""
        message = f"{place}: {first['msg']}{found}"
        raise InvalidRequest(message, param=param, code="invalid_type") from None
