"""A chat request prepared for a model: the prompt, and how to parse and constrain the output."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headrace.chat.answer_span import AnswerSpan
from headrace.chat.messages import Message
from headrace.chat.output_parser import OutputParser, OutputSyntax, ToolGrammar, output_grammar, output_syntax
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.chat.tool_formats.format import ToolFormat, short_id
from headrace.chat.tool_formats.gpt_oss import ANALYSIS, FINAL, Harmony
from headrace.chat.tool_formats.registry import FAMILIES
from headrace.chat.tools import ToolUse
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint
from headrace.sampling.reasoning_budget import ReasoningBudget
from headrace.tokenization.tokenizer import Tokenizer

CONTINUATION = "Wait"
"""Text inserted when a model would end its reasoning too early, as in s1."""

_syntax_of = lru_cache(32)(output_syntax)


class ChatPrompt(Struct, frozen=True):
    """A rendered prompt and the syntax of the answer.

    `starts_in_reasoning`: the prompt ends within the reasoning. `use`: the available tools.
    """

    text: str
    syntax: OutputSyntax
    use: ToolUse | None
    starts_in_reasoning: bool
    is_continuation: bool

    @property
    def plain(self) -> bool:
        """True if the output is plain text."""
        return self.is_continuation or (self.use is None and self.syntax.thinking is None)

    def parser(self, origin: str = "") -> OutputParser:
        """A parser for one choice; each choice needs its own. Ids of calls are made of `origin`."""
        return OutputParser(
            self.syntax, self.use, starts_in_reasoning=self.starts_in_reasoning, origin=origin
        )

    def visible_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that must appear in the text for the parser."""
        if self.plain:
            return frozenset()
        return frozenset(
            token_id for mark in self.syntax.marks if (token_id := _special_id(tokenizer, mark)) is not None
        )

    def unwanted_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Tokens that begin tool calls, special or not, where there is no tool to call."""
        if self.use is not None or not isinstance(self.syntax.family, ToolFormat):
            return frozenset()  # in harmony the same marks begin an answer
        ids = (tokenizer.id_of(mark.strip()) for mark in self.syntax.family.opens)
        return frozenset(token_id for token_id in ids if token_id is not None) - tokenizer.eos_ids

    def tool_grammar(
        self, tokenizer: Tokenizer, use: ToolUse, *, disable_additional_properties: bool
    ) -> ToolGrammar:
        """The grammar of an output that calls the tools of `use`. Raises InvalidRequest."""
        return output_grammar(
            self.syntax,
            use,
            lambda mark: _special_id(tokenizer, mark),
            starts_in_reasoning=self.starts_in_reasoning,
            disable_additional_properties=disable_additional_properties,
        )

    def after_reasoning(self, wanted: Constraint) -> Constraint:
        """The constraint, from the end of reasoning that the prompt has started."""
        reasoning = self.syntax.reasoning
        if not self.starts_in_reasoning or reasoning is None:
            return wanted
        return replace(wanted, after=reasoning.end)

    @property
    def answer_span(self) -> AnswerSpan | None:
        """Location of the answer in the output; None if all of it is the answer."""
        if self.plain or self.syntax.thinking is None:
            return None
        if isinstance(self.syntax.family, Harmony):
            return AnswerSpan(FINAL, ANALYSIS[0])
        marks = self.syntax.thinking
        return AnswerSpan(marks.end, marks.start, self.starts_in_reasoning, marks.wrap)

    def thinking(
        self,
        tokenizer: Tokenizer,
        max_tokens: int | None,
        *,
        param: str,
        min_tokens: int = 0,
        continuation: str = CONTINUATION,
    ) -> ReasoningBudget:
        """Limits on reasoning tokens. Reasoning is ended by the model's own end marker; if the model
        would end it before `min_tokens`, `continuation` replaces the marker.

        Raises InvalidRequest naming `param` if the model has no reasoning markers.
        """
        marks = self.syntax.thinking
        if marks is None or self.is_continuation:
            cause = "this model's chat template has no markers for reasoning"
            if self.is_continuation:
                cause = "with continue_final_message there is no reasoning"
            raise InvalidRequest(f"{param}: {cause}: leave it out", param=param, code="unsupported_parameter")
        family, end = self.syntax.family, marks.end.encode()
        harmony = isinstance(family, Harmony)
        text = family.closing(calls=self.use is not None) if harmony else marks.end
        closing = tokenizer.encode(text, add_special=False)
        if end not in b"".join(map(tokenizer.token_bytes, closing)):
            raise InvalidRequest(
                f"{param}: this model's tokenizer cannot write {marks.end!r}: leave it out", param=param
            )
        further = tokenizer.encode(continuation, add_special=False) if min_tokens else []
        if end in b"".join(map(tokenizer.token_bytes, further)):
            raise InvalidRequest(
                f"thinking_continuation contains {marks.end!r}, which ends the reasoning: take it out",
                param="thinking_continuation",
            )
        return ReasoningBudget(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            continuation=tuple(further),
            start=marks.start.encode(),
            end=end,
            closing=tuple(closing),
            starts_in_reasoning=self.starts_in_reasoning,
            reopens=harmony,
        )


def prepare(
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    use: ToolUse | None = None,
    family: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> ChatPrompt:
    """Render messages and tools. Raises InvalidRequest for tools that the template would ignore.

    `family` names the tool call format if the template does not determine it.
    """
    syntax = _syntax_of(template.tool_source if use else template.source, family)
    if use is not None:
        _check_tools(template, syntax)
    if syntax.family is not None and syntax.family.new_id is short_id:
        messages = [_with_short_ids(message) for message in messages]
    text = template.render(
        messages,
        tools=[tool.for_template() for tool in use.offered] if use else None,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        variables=variables,
    )
    starts_in_reasoning = syntax.reasoning is not None and syntax.reasoning.opened_by(text)
    return ChatPrompt(text, syntax, use, starts_in_reasoning, continue_final_message)


def _check_tools(template: ChatTemplate, syntax: OutputSyntax) -> None:
    # A template that first assigns its own `tools` from another variable does read it.
    if "tools" not in template.reads and "set tools =" not in template.tool_source:
        raise InvalidRequest(
            "this model's chat template does not know tools: leave tools out, or use a model that was "
            "trained to call them",
            param="tools",
            code="tools_unsupported",
        )
    if syntax.family is None:
        raise InvalidRequest(
            "this model's chat template shows tools, but not the syntax of calls: name it with "
            f"the setting tool_format, one of {', '.join(FAMILIES)}",
            param="tools",
            code="tools_unsupported",
        )


def _with_short_ids(message: Message) -> Message:
    """Replace tool call ids by the format that Mistral's templates accept; equal ids stay equal."""
    calls = tuple(replace(call, id=_short(call.id)) for call in message.tool_calls)
    answers = None if message.tool_call_id is None else _short(message.tool_call_id)
    return replace(message, tool_calls=calls, tool_call_id=answers)


def _short(call_id: str) -> str:
    kept = len(call_id) == 9 and call_id.isalnum()
    return call_id if kept else hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def _special_id(tokenizer: Tokenizer, mark: str) -> int | None:
    token_id = tokenizer.id_of(mark)
    return token_id if token_id in tokenizer.pieces.special_ids else None
