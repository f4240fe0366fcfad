"""Bodies of Anthropic's requests: every field and block that is understood, and no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, field

from headrace.api.http.body import CacheField, GuardNames, RequestBody, RouteBody, SloBody, Values
from headrace.api.http.sampling_fields import bounds
from headrace.errors import InvalidRequest
from headrace.inference.events import ParameterWarning
from headrace.sampling.params import MAX_STOPS

NonEmpty = Annotated[str, Meta(min_length=1)]


class Strict(Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a body: nothing unknown in it, no value of another type."""


class CacheControl(Strict):
    """Accepted: every prompt is cached as it is, whether marked or not."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Cacheable(Strict):
    """A part that may have a cache mark."""

    cache_control: CacheControl | None = None


class AnyText(Cacheable, kw_only=True):
    """Text."""

    text: str
    citations: Annotated[list[Any], Meta(max_length=0)] | None = None


class OnlyText(AnyText, kw_only=True):
    """Text, where there is nothing but text."""

    type: Literal["text"]


class TextPart(AnyText, tag_field="type", tag="text"):
    """Text among other parts."""


Texts = str | list[OnlyText]


class ThinkingPart(Strict, kw_only=True, tag_field="type", tag="thinking"):
    """Reasoning of an earlier turn. The signature is not checked here; that of a remote model goes back."""

    thinking: str
    signature: str | None = None


class RedactedPart(Strict, kw_only=True, tag_field="type", tag="redacted_thinking"):
    """Encrypted reasoning of another server: left out, with a warning."""

    data: str


class DirectCaller(Strict):
    """The model itself made the call."""

    type: Literal["direct"]


class ToolUsePart(Cacheable, kw_only=True, tag_field="type", tag="tool_use"):
    """A call that the model made."""

    id: NonEmpty
    name: NonEmpty
    input: dict[str, Any]
    caller: DirectCaller | None = None


class ToolResultPart(Cacheable, kw_only=True, tag_field="type", tag="tool_result"):
    """The result of a call. The model reads an error as text that begins with `Error: `."""

    tool_use_id: str
    content: Texts = []
    is_error: bool | None = None


class Base64Source(Strict, kw_only=True, tag_field="type", tag="base64"):
    """An image in the body itself."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: NonEmpty


class UrlSource(Strict, kw_only=True, tag_field="type", tag="url"):
    """An image by its address, which the provider of a remote model reads."""

    url: NonEmpty


class ImagePart(Cacheable, kw_only=True, tag_field="type", tag="image"):
    """An image, for remote models that see: models of this machine read text only."""

    source: Base64Source | UrlSource


UserPart = TextPart | ImagePart | ToolResultPart
AssistantPart = TextPart | ThinkingPart | RedactedPart | ToolUsePart


class UserTurn(Strict, kw_only=True, tag_field="role", tag="user"):
    """Texts of the user, and results of tools."""

    content: str | list[UserPart]


class AssistantTurn(Strict, kw_only=True, tag_field="role", tag="assistant"):
    """An answer of the model. Where it is the last turn, the new answer continues its text."""

    content: str | list[AssistantPart]


class SystemTurn(Strict, kw_only=True, tag_field="role", tag="system"):
    """Instructions in the middle of a conversation."""

    content: Texts


Turn = UserTurn | AssistantTurn | SystemTurn


class ToolPart(Cacheable, kw_only=True):
    """A tool that the caller runs."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    input_examples: Annotated[
        list[dict[str, Any]] | None, Meta(description="Has no effect: chat templates show none.")
    ] = None
    eager_input_streaming: Annotated[
        bool | None, Meta(description="Has no effect: input always streams as it comes.")
    ] = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Annotated[bool | None, Meta(extra_json_schema={"enum": [False, None]})] = None


class FreeChoice(Strict):
    """Whether the model may call several tools in one answer."""

    disable_parallel_tool_use: bool = False


class AutoChoice(FreeChoice, tag_field="type", tag="auto"):
    """The model may call tools."""


class AnyChoice(FreeChoice, tag_field="type", tag="any"):
    """The model must call a tool."""


class NamedChoice(FreeChoice, kw_only=True, tag_field="type", tag="tool"):
    """The model must call this tool."""

    name: str


class NoChoice(Strict, tag_field="type", tag="none"):
    """The model is not shown the tools."""


ToolChoice = AutoChoice | AnyChoice | NamedChoice | NoChoice

Display = Annotated[
    Literal["summarized", "omitted"] | None,
    Meta(description="Thinking is never summarized: it is sent whole, or omitted."),
]


class ThinkingEnabled(Strict, kw_only=True, tag_field="type", tag="enabled"):
    """Reason before the answer, for at most `budget_tokens` tokens."""

    budget_tokens: Annotated[int, Meta(ge=1)]
    display: Display = None


class ThinkingAdaptive(Strict, tag_field="type", tag="adaptive"):
    """Reason as long as the model does by itself."""

    display: Display = None


class ThinkingDisabled(Strict, tag_field="type", tag="disabled"):
    """Answer without reasoning."""


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled


class JsonFormat(Strict, kw_only=True):
    """The answer is JSON that matches the schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = field(name="schema")


class OutputConfig(Strict):
    """Format of the answer, and the level of reasoning before it."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class PromptBody(RequestBody, kw_only=True):
    """The fields that make a prompt: the body of count_tokens, and part of a message's. None: not given."""

    no_effect: ClassVar[Mapping[str, Values]] = {
        "metadata": ({}, {"user_id": None}),
        "diagnostics": ({}, {"previous_message_id": None}),
        "inference_geo": (),
        "speed": ("standard",),
        "user_profile_id": (),
    }
    # The one edit that is accepted asks for what happens anyway.
    unsupported: ClassVar[Mapping[str, Values]] = {
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
    messages: Annotated[list[Turn], Meta(min_length=1)]
    system: Texts | None = None
    tools: list[ToolPart] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    thread: Annotated[Any, Meta(extra_json_schema={"type": "null"})] = None

    def warnings(self) -> list[ParameterWarning]:
        """Warnings for fields without effect; raises InvalidRequest for one that cannot be honored."""
        if self.thread is not None:
            raise InvalidRequest(
                "thread: conversations are not kept here, send the whole one with each request",
                param="thread",
                code="thread_unsupported_request",  # on which the official client does so by itself
            )
        return super().warnings()


class MessageBody(PromptBody, kw_only=True):
    """The body of a message."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[NonEmpty], Meta(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, bounds("temperature")] | None = None
    top_p: Annotated[float, bounds("top_p")] | None = None
    top_k: Annotated[int, bounds("top_k")] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    slo: SloBody | None = None
    route: RouteBody | None = None
    guard: GuardNames = None
    cache: CacheField = None
