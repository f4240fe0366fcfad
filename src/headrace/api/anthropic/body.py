"""Bodies of Anthropic's requests: every field and block that is understood, and no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from headrace.api.openai.parameters import RequestBody
from headrace.errors import InvalidRequest
from headrace.inference.events import ParameterWarning
from headrace.sampling.params import MAX_STOPS


class Strict(BaseModel):
    """A part of a body: nothing unknown in it, no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class CacheControl(Strict):
    """Accepted: every prompt is cached as it is, whether marked or not."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Cacheable(Strict):
    """A part that may have a cache mark."""

    cache_control: CacheControl | None = None


class TextPart(Cacheable):
    """Text."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class ThinkingPart(Strict):
    """Reasoning of an earlier turn. The signature is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedPart(Strict):
    """Encrypted reasoning of another server: left out, with a warning."""

    type: Literal["redacted_thinking"]
    data: str


class DirectCaller(Strict):
    """The model itself made the call."""

    type: Literal["direct"]


class ToolUsePart(Cacheable):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: dict[str, Any]
    caller: DirectCaller | None = None


def _parts(value: object) -> object:
    """A text means a list of one part."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Texts = Annotated[list[TextPart], BeforeValidator(_parts, json_schema_input_type=str | list[TextPart])]


class ToolResultPart(Cacheable):
    """The result of a call. The model reads an error as text that begins with `Error: `."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = []
    is_error: bool | None = None


UserPart = Annotated[TextPart | ToolResultPart, Field(discriminator="type")]
AssistantPart = Annotated[TextPart | ThinkingPart | RedactedPart | ToolUsePart, Field(discriminator="type")]
UserParts = Annotated[list[UserPart], BeforeValidator(_parts, json_schema_input_type=str | list[UserPart])]
AssistantParts = Annotated[
    list[AssistantPart], BeforeValidator(_parts, json_schema_input_type=str | list[AssistantPart])
]


class UserTurn(Strict):
    """Texts of the user, and results of tools."""

    role: Literal["user"]
    content: UserParts


class AssistantTurn(Strict):
    """An answer of the model. Where it is the last turn, the new answer continues its text."""

    role: Literal["assistant"]
    content: AssistantParts


class SystemTurn(Strict):
    """Instructions in the middle of a conversation."""

    role: Literal["system"]
    content: Texts


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]


class ToolPart(Cacheable):
    """A tool that the caller runs."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    input_examples: Annotated[
        list[dict[str, Any]] | None, Field(description="Has no effect: chat templates show none.")
    ] = None
    eager_input_streaming: Annotated[
        bool | None, Field(description="Has no effect: input always streams as it comes.")
    ] = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Literal[False] | None = None


class FreeChoice(Strict):
    """The model may call tools (auto), or must (any)."""

    type: Literal["auto", "any"]
    disable_parallel_tool_use: bool = False


class NamedChoice(Strict):
    """The model must call this tool."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


class NoChoice(Strict):
    """The model is not shown the tools."""

    type: Literal["none"]


ToolChoice = Annotated[FreeChoice | NamedChoice | NoChoice, Field(discriminator="type")]

Display = Annotated[
    Literal["summarized", "omitted"] | None,
    Field(description="Thinking is never summarized: it is sent whole, or omitted."),
]


class ThinkingEnabled(Strict):
    """Reason before the answer, for at most `budget_tokens` tokens."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1)]
    display: Display = None


class ThinkingAdaptive(Strict):
    """Reason as long as the model does by itself."""

    type: Literal["adaptive"]
    display: Display = None


class ThinkingDisabled(Strict):
    """Answer without reasoning."""

    type: Literal["disabled"]


Thinking = Annotated[ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled, Field(discriminator="type")]


class JsonFormat(Strict):
    """The answer is JSON that matches the schema."""

    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Strict):
    """Format of the answer, and the level of reasoning before it."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class PromptBody(RequestBody):
    """The fields that make a prompt: the body of count_tokens, and part of a message's. None: not given."""

    no_effect: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "metadata": ({}, {"user_id": None}),
        "diagnostics": ({}, {"previous_message_id": None}),
        "inference_geo": (),
        "speed": ("standard",),
        "user_profile_id": (),
    }
    # The one edit that is accepted asks for what happens anyway.
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "container": (),
        "context_management": (
            {},
            {"edits": []},
            {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        ),
        "mcp_servers": ([],),
        "compaction": (),
        "fallbacks": ([],),
    }

    model: str | None = None
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: Texts | None = None
    tools: list[ToolPart] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    thread: Annotated[Any, WithJsonSchema({"type": "null"})] = None

    def warnings(self) -> list[ParameterWarning]:
        """Warnings for fields without effect; raises InvalidRequest for one that cannot be honored."""
        if self.thread is not None:
            raise InvalidRequest(
                "thread: conversations are not kept here, send the whole one with each request",
                param="thread",
                code="thread_unsupported_request",  # on which the official client does so by itself
            )
        return super().warnings()


class MessageBody(PromptBody):
    """The body of a message."""

    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    stop_sequences: (
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS)] | None
    ) = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
