"""Requests in a form that no provider's API defines: what the surfaces translate their bodies to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from headrace.chat.messages import Message
from headrace.chat.tools import ToolUse
from headrace.engine.request import Targets
from headrace.grammar.constraint import Constraint
from headrace.inference.input_purpose import InputPurpose
from headrace.weights.head import TaskName

CacheUse = Literal["auto", "off", "near"]

Prompt = str | tuple[int, ...]
"""Text, or token ids."""


class ReasoningSettings(Struct, frozen=True, kw_only=True):
    """How much a model that reasons should reason; None leaves it to the model.

    `enabled` switches reasoning on or off, `effort` is a level such as "low". `max_tokens` and `min_tokens`
    bound its tokens: where the model would end it earlier, `continuation` takes the place of the end mark.
    `required`: a model that does not reason is an error rather than a warning. `names` maps these fields to
    the parameters of the surface, for errors and warnings.
    """

    enabled: bool | None = None
    effort: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    continuation: str | None = None
    required: bool = False
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    def name(self, field_name: str) -> str:
        """The surface's parameter for a field of this class."""
        return self.names.get(field_name, field_name)


class ScalingSettings(Struct, frozen=True, kw_only=True):
    """What is made of several choices of a prompt: see `engine.scaling.options.scaling_of`.

    `keep` is how many of them are returned.
    """

    vote: object = None
    best_by: object = None
    max_total_tokens: int | None = None
    keep: int = 1


class RouteWishes(Struct, frozen=True, kw_only=True):
    """What a request wants of the route that it names; it can only narrow what the settings allow.

    No more than `max_usd` dollars are set aside for it, and it takes `max_s` seconds at most. `privacy`:
    "local" keeps it on this machine, "redact" replaces personal data before it leaves. `quality` is the part
    of answers that are as good as the large model's.
    """

    max_usd: float | None = None
    max_s: float | None = None
    privacy: Literal["local", "redact"] | None = None
    quality: float | None = None


class InferenceRequest(Struct, frozen=True, kw_only=True):
    """What all requests have. `id` is the reply's, unique among running requests.

    `model` None is the default model, kept loaded for `keep_alive_s` after its use (None: as configured).
    `cache_key` separates prefix caches within an account. A lower `priority` runs sooner; `deadline_s`
    counts from submission. `slo` are targets of its own, `route` is for a choice among models.
    """

    id: str
    model: str | None = None
    keep_alive_s: float | None = None
    cache_key: str | None = None
    priority: int = 0
    deadline_s: float | None = None
    slo: Targets | None = None
    route: RouteWishes | None = None


class Truncation(Struct, frozen=True):
    """What is too long is cut, with a warning: to `limit` tokens (None: to the model's context, for what is
    generated less its `max_tokens`), at its end or, with `side` left, at its beginning. `param` asked for
    it."""

    limit: int | None = None
    side: Literal["left", "right"] = "right"
    param: str = "truncate"


def as_truncation(given: bool | Truncation) -> Truncation | None:
    """How texts are cut, None: not at all. True is as Truncation()."""
    if isinstance(given, Truncation):
        return given
    return Truncation() if given else None


class GenerationRequest(InferenceRequest, frozen=True, kw_only=True):
    """Text is generated. `sampling` has the parameters that were given, by the names of `SamplingParams`;
    the model's defaults fill in the rest.

    `constraint` is what every choice must match. `context_limit` is a context smaller than the model's, in
    tokens. With `fit_context`, `max_tokens` is a bound and not a reservation: an answer may end earlier
    because the context is full. With `disable_additional_properties`, objects of schemas that list properties
    have no others, unless the schema says so. With `finish_within_max_tokens` an output with a grammar takes
    a short way to its end when few of its tokens are left. With `show_prompt` the text of each prompt as the
    model reads it, special tokens too, is announced. `guards` are named besides
    those that read every request. `cache` is what a response cache may do: "off" neither keeps the answer nor
    gives a kept one; with "near" that of a similar question will do, too. Prompts that are too long are
    refused unless `truncate` says how they are cut.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    constraint: Constraint | None = None
    scaling: ScalingSettings | None = None
    context_limit: int | None = None
    fit_context: bool = False
    disable_additional_properties: bool = True
    finish_within_max_tokens: bool = False
    show_prompt: bool = False
    guards: tuple[str, ...] = ()
    cache: CacheUse = "auto"
    truncate: Truncation | None = None


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """A conversation to answer. `template_variables` go to the chat template by name.

    With `literal`, special tokens that messages spell are plain text: for texts that nobody has looked at.
    `context` has tokens of earlier turns, which the rendered messages continue. `prediction` is text that the
    answer is expected to contain, which makes it faster where it does.
    """

    messages: tuple[Message, ...]
    tools: ToolUse | None = None
    tool_format: str | None = None
    reasoning: ReasoningSettings = ReasoningSettings()
    template_variables: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    literal: bool = False
    context: tuple[int, ...] = ()
    prediction: str | None = None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """Prompts to continue; every one has its own choices. Of choice c of prompt p the number is p * n + c.

    With `suffix` the text between prompt and suffix is generated.
    """

    prompts: tuple[Prompt, ...]
    suffix: str | None = None


class ScoringRequest(InferenceRequest, frozen=True, kw_only=True):
    """How likely each of `continuations` is after each of `prompts`, by a decoder; nothing is generated."""

    prompts: tuple[tuple[int, ...], ...]
    continuations: tuple[tuple[int, ...], ...]


class TextPair(Struct, frozen=True):
    """Two texts that an encoder reads together, such as a query and a document."""

    first: str
    second: str


class ExpandedTokens(Struct, frozen=True):
    """Token ids, of which the last `unseen` see the others and are seen by none: the expansion of a query."""

    ids: tuple[int, ...]
    unseen: int = 0


class InputName(Struct, frozen=True):
    """What an input is called in errors and warnings, and the parameter that has it."""

    what: str
    param: str = "input"


class EmbeddingRequest(InferenceRequest, frozen=True, kw_only=True):
    """What an encoder makes of inputs: vectors, or the rows of its head; of each row the first `dimensions`
    numbers, None for all.

    The model must be able to do `task`. Inputs longer than the context, or than `max_tokens`, are refused, or
    with `truncate` (True: as Truncation()) cut with a warning; of a pair its second text is. `prompt_name` is
    one of the model's prompts, which is put in front of texts; None: that for `purpose` (a warning says where
    the model has none), or its default. In what is said of inputs the first one has the number `first_input`,
    or each has its own of `input_names`.
    """

    inputs: tuple[Prompt | TextPair | ExpandedTokens, ...]
    first_input: int = 0
    input_names: tuple[InputName, ...] = ()
    prompt_name: str | None = None
    purpose: InputPurpose | None = None
    task: TaskName = "embed"
    dimensions: int | None = None
    truncate: bool | Truncation = False
    max_tokens: int | None = None
