"""Bodies of Google's requests: every field that is understood, and no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import Meta, Struct

from headrace.api.http.body import CacheField, GuardNames, RequestBody, RouteBody, SloBody, Values
from headrace.api.http.sampling_fields import bounds
from headrace.sampling.params import MAX_STOPS


class Part(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of a turn: exactly one of text, data, a call and a response of a function."""

    text: str | None = None
    inline_data: InlineData | None = None
    file_data: FileData | None = None
    function_call: GoogleCall | None = None
    function_response: FunctionResponse | None = None
    thought: bool | None = None
    thought_signature: Annotated[str | None, Meta(description="Has no effect.")] = None


class InlineData(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Data in the body itself, as base64."""

    mime_type: str
    data: Annotated[str, Meta(min_length=1)]
    display_name: str | None = None


class FileData(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Data by its address, which the provider of a remote model reads."""

    file_uri: Annotated[str, Meta(min_length=1)]
    mime_type: str | None = None
    display_name: str | None = None


class GoogleCall(Struct, kw_only=True, forbid_unknown_fields=True):
    """A call that the model made."""

    name: Annotated[str, Meta(min_length=1)]
    args: dict[str, Any] | None = None
    id: str | None = None


class FunctionResponse(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The result of a call."""

    name: Annotated[str, Meta(min_length=1)]
    response: dict[str, Any]
    id: str | None = None
    will_continue: Literal[False] | None = None
    scheduling: Annotated[str | None, Meta(description="Has no effect.")] = None


class Content(Struct, kw_only=True, forbid_unknown_fields=True):
    """A turn: of the user (also with responses of functions) or of the model."""

    parts: list[Part]
    role: Literal["user", "model", "function", "system"] | None = None


class FunctionDeclaration(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A function that the caller runs; its parameters as Google's schema or as JSON Schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None
    response: Annotated[dict[str, Any] | None, Meta(description="Has no effect.")] = None
    response_json_schema: Annotated[Any, Meta(description="Has no effect.")] = None
    behavior: Literal["UNSPECIFIED", "BLOCKING"] | None = None


class GoogleTool(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Tools that the model may call; tools of Google's servers are refused by name."""

    function_declarations: list[FunctionDeclaration]


class CallingConfig(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Whether the model may, must or must not call functions, and which."""

    mode: Literal["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"] = "AUTO"
    allowed_function_names: list[str] | None = None


class ToolConfig(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The choice among tools."""

    function_calling_config: CallingConfig | None = None


class ThinkingConfig(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How much the model reasons: a budget of tokens (0: none, -1: as it likes) or a level."""

    include_thoughts: bool = False
    thinking_budget: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    thinking_level: Literal["MINIMAL", "LOW", "MEDIUM", "HIGH"] | None = None


class GenerationConfig(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Sampling, and the format of the answer."""

    temperature: Annotated[float, bounds("temperature")] | None = None
    top_p: Annotated[float, bounds("top_p")] | None = None
    top_k: Annotated[int, bounds("top_k")] | None = None
    candidate_count: Annotated[int, bounds("n")] | None = None
    max_output_tokens: Annotated[int, bounds("max_tokens")] | None = None
    stop_sequences: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=MAX_STOPS)] | None = (
        None
    )
    presence_penalty: Annotated[float, bounds("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, bounds("frequency_penalty")] | None = None
    seed: Annotated[int, bounds("seed")] | None = None
    response_logprobs: bool = False
    logprobs: Annotated[int, bounds("logprobs")] | None = None
    response_mime_type: Literal["text/plain", "application/json", "text/x.enum"] | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    response_modalities: list[Literal["TEXT", "MODALITY_UNSPECIFIED"]] | None = None
    thinking_config: ThinkingConfig | None = None


class GoogleBody(RequestBody, kw_only=True, rename="camel"):
    """A body. Google's own examples mix names such as system_instruction in: they are systemInstruction."""

    @classmethod
    def prepared(cls, content: object) -> object:
        """See RequestBody.prepared."""
        return camel_case(content)


class PromptBody(GoogleBody, kw_only=True, rename="camel"):
    """The fields that make a prompt. None: not given."""

    no_effect: ClassVar[Mapping[str, Values]] = {"safetySettings": ([],), "labels": ({},)}
    unsupported: ClassVar[Mapping[str, Values]] = {"cachedContent": ("",)}

    contents: Annotated[list[Content], Meta(min_length=1)]
    system_instruction: Content | None = None
    tools: list[GoogleTool] | None = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig | None = None


class GenerateContentBody(PromptBody, kw_only=True, rename="camel"):
    """The body of generateContent."""

    model: Annotated[str | None, Meta(description="Has no effect: the path names the model.")] = None
    slo: SloBody | None = None
    route: RouteBody | None = None
    guard: GuardNames = None
    cache: CacheField = None


class CountBody(GoogleBody, kw_only=True, rename="camel"):
    """The body of countTokens: turns, or a whole request."""

    parts: ClassVar[Mapping[str, type[RequestBody]]] = {"generateContentRequest": GenerateContentBody}

    contents: list[Content] | None = None
    generate_content_request: dict[str, Any] | None = None


_KINDS = (
    *(PromptBody, CountBody, Part, InlineData, FileData, FunctionDeclaration, GoogleTool, ToolConfig),
    *(CallingConfig, GenerationConfig, ThinkingConfig),
)
_SNAKE: Mapping[str, str] = {
    field.name: field.encode_name
    for kind in _KINDS
    for field in msgspec.structs.fields(kind)
    if field.name != field.encode_name
}
_FREE = frozenset({"args", "response", "parameters", "parametersJsonSchema", "responseSchema"})


def camel_case(content: object) -> object:
    """The same with the names of fields as this API writes them; what is the caller's own stays as it is."""
    if isinstance(content, list):
        return [camel_case(one) for one in cast("list[object]", content)]
    if not isinstance(content, dict):
        return content
    found: dict[str, object] = {}
    for name, value in cast("dict[str, object]", content).items():
        written = _SNAKE.get(name, name)
        found[written] = value if written in _FREE else camel_case(value)
    return found
