"""What is known of providers, as data: `table.toml` beside this file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from headrace.config.providers import DialectName
from headrace.struct_types import thread_safe

FILE = Path(__file__).with_name("table.toml")
DEFAULT_ROW = "compatible"
"""The row of a server about which nothing is known but its dialect."""

ReasoningForm = Literal["", "effort", "openrouter", "deepseek", "template", "headrace", "anthropic", "google"]
BatchForm = Literal["", "openai", "anthropic"]
Continues = Literal["", "plain", "prefix", "vllm", "sglang"]


class ProviderRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One provider or server.

    `key` is the variable of its key, which goes into `key_header`, by default as a bearer token.
    `parameters` are the fields of SamplingParams that it honors, "*" all; `rename` has its names of some.
    `constraints` are the kinds of Constraint that it takes, `guaranteed` those whose output always matches;
    others are validated here, and with `strict_schemas` schemas that OpenAI does not take as strict, too.
    `constraint_field` is where kinds without a `response_format` go.
    `reasoning` is the form in which reasoning is asked for, `returns_reasoning` the field in which earlier
    reasoning goes back, if it does. `embeddings` is the form in which texts are embedded, `rerank` that in
    which documents are ranked, with `rerank_extra` in the body; one that only does these has `generates`
    false. `continues` is how the last message is continued. `extra` goes into every body; with
    `extra_needs_reasoning` only where reasoning is asked for. `extra_fields`: it takes Headrace's own fields.
    `tiers` are ways of processing besides the usual one that a request may ask for by `service_tier`.
    `batches` is the form of its batches, which are answered later and cost less. `max_output` are the
    tokens that its models write at most, `reasoning_beyond` how many of reasoning may
    come on top of the limit of an answer: by patterns of the model's name, the first that matches counts.
    `image_tokens` is the most that one image counts as.
    """

    dialect: DialectName = "openai_chat"
    base_url: str = ""
    key: str | None = None
    key_header: str = ""
    parameters: tuple[str, ...] = ()
    rename: Mapping[str, str] = {}
    constraints: tuple[str, ...] = ()
    guaranteed: tuple[str, ...] = ()
    constraint_field: Literal["", "structured_outputs", "top", "grammar"] = ""
    strict_schemas: bool = False
    reasoning: ReasoningForm = ""
    returns_reasoning: Literal["", "reasoning", "reasoning_content"] = ""
    continues: Continues = ""
    images: bool = True
    tools: bool = True
    tool_choice: bool = True
    required_choice: str = "required"
    parallel_switch: bool = True
    short_call_ids: bool = False
    tool_names: bool = False
    developer_role: bool = False
    stream_usage: bool = True
    completions: bool = False
    generates: bool = True
    embeddings: Literal["", "openai", "google"] = ""
    rerank: Literal["", "cohere", "tei"] = ""
    rerank_extra: Mapping[str, Any] = {}
    token_prompts: bool = False
    suffix: bool = False
    template_variables: bool = False
    prediction: bool = False
    cache_key: bool = False
    extra: Mapping[str, Any] = {}
    extra_needs_reasoning: bool = False
    extra_fields: bool = False
    tiers: tuple[str, ...] = ()
    batches: BatchForm = ""
    max_output: Mapping[str, int] = {}
    reasoning_beyond: Mapping[str, int] = {}
    image_tokens: int = 50_000

    def honors(self, parameter: str) -> bool:
        """Whether it honors a field of SamplingParams."""
        return parameter in self.parameters or "*" in self.parameters

    def takes(self, constraint: str) -> bool:
        """Whether it takes a kind of Constraint."""
        return constraint in self.constraints or "*" in self.constraints

    def guarantees(self, constraint: str) -> bool:
        """Whether its output always matches a kind of Constraint that it takes."""
        return constraint in self.guaranteed or "*" in self.guaranteed

    def name_of(self, parameter: str) -> str:
        """Its name of a field of SamplingParams."""
        return self.rename.get(parameter, parameter)


@cache
def provider_rows() -> Mapping[str, ProviderRow]:
    """The table, by name."""
    raw: dict[str, dict[str, Any]] = tomllib.loads(FILE.read_text("utf-8"))
    rows: dict[str, ProviderRow] = {}
    for name, entry in raw.items():
        rows[name] = msgspec.convert(_whole(entry, raw), thread_safe(ProviderRow))
    return rows


def _whole(entry: Mapping[str, Any], raw: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A row with what it takes over from another."""
    own = {key: value for key, value in entry.items() if key != "like"}
    return own if "like" not in entry else _whole(raw[entry["like"]], raw) | own
