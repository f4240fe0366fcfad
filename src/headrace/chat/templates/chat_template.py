"""Render messages to prompt text with the checkpoint's own chat template."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import jinja2

from headrace.chat.messages import Message, template_messages
from headrace.chat.templates.dates import CLOCK, DATE, DATETIME, date_inputs
from headrace.chat.templates.filters import BUDGET
from headrace.chat.templates.message_forms import CallForm, Render, as_parts, call_form, needs_parts
from headrace.chat.templates.render_budget import Budget
from headrace.chat.templates.sandbox import Sandbox, output_too_long
from headrace.errors import CorruptFile, InvalidRequest, TemplateError, TemplateMissing
from headrace.tokenization.token_config import read_object, token_text

SOURCE_LIMIT_BYTES = 256 * 1024
_RESERVED_NAMES = """
    messages tools add_generation_prompt continue_final_message bos_token eos_token raise_exception
    strftime_now range dict namespace cycler joiner lipsum loop self caller varargs kwargs
    true false none True False None
    """
RESERVED = frozenset(_RESERVED_NAMES.split())
FUNCTIONS = "functions"
FIREFUNCTION = frozenset({FUNCTIONS, DATETIME})
"""What the templates of that model read in the place of `tools`."""
_CONTINUE_MARK = "\ue000continue-here\ue001"


class ChatTemplate:
    """A compiled chat template. Thread-safe.

    `reads` holds the names of the variables that the template reads, so that a caller can report variables
    without effect. `tool_source` is used instead of `source` if tools are given. `now` is the clock of the
    date that templates show.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        special_tokens: Mapping[str, str | list[str]] | None = None,
        tool_source: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        # Templates concatenate these two with strings, so they are always defined.
        self._tokens = {**(special_tokens or {}), "bos_token": bos_token or "", "eos_token": eos_token or ""}
        self.source = source
        self.tool_source = source if tool_source is None else tool_source
        self._plain = _Compiled(source)
        self._with_tools = self._plain if tool_source is None else _Compiled(tool_source)
        self._now = now
        self.reads = self._plain.reads | self._with_tools.reads
        if self.reads >= FIREFUNCTION:
            self.reads |= {"tools"}
        if CLOCK in self.reads:
            self.reads |= {DATE}

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`.

        `continue_final_message` leaves the last message open, so that the model continues its text; it
        excludes `add_generation_prompt`. Raises TemplateError with the line of the template; InvalidRequest
        for contradictory arguments and for variables that shadow reserved names.
        """
        compiled = self._with_tools if tools else self._plain
        values = compiled.in_its_form(messages, self._inputs)
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequest(
                    "continue_final_message and add_generation_prompt exclude each other: set one to false",
                    param="continue_final_message",
                )
            _mark_end(values)
        checked = _checked_variables(variables or {}, self._tokens)
        if compiled.takes_parts(self._inputs):
            values = as_parts(values)
        given = [dict(tool) for tool in tools] if tools else None
        inputs = self._inputs(compiled, values, given, checked)
        text = compiled.render({**inputs, "add_generation_prompt": add_generation_prompt})
        return _cut_at_mark(text) if continue_final_message else text

    def in_its_form(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[dict[str, Any]]:
        """The messages as the template gets them."""
        compiled = self._with_tools if tools else self._plain
        values = compiled.in_its_form(messages, self._inputs)
        return as_parts(values) if compiled.takes_parts(self._inputs) else values

    def _inputs(
        self,
        compiled: _Compiled,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        variables: Mapping[str, Any],
    ) -> dict[str, Any]:
        return {
            **_functions(tools, compiled.reads),
            **variables,
            **date_inputs(variables, compiled.reads, self._now()),
            **self._tokens,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": True,
        }


def load_template(folder: Path) -> ChatTemplate | None:
    """The chat template of a checkpoint folder; None if it has none.

    Search order as in `transformers`: chat_template.jinja (with additional_chat_templates/), then
    chat_template.json, then `chat_template` in tokenizer_config.json: a string, or a list of named
    templates of which `default` and `tool_use` are used. Raises CorruptFile, TemplateError.
    """
    config = read_object(folder / "tokenizer_config.json")
    special = {**read_object(folder / "special_tokens_map.json"), **config}
    texts = {name: token_text(entry) for name, entry in special.items() if name.endswith("_token")}
    tokens: dict[str, str | list[str]] = {name: text for name, text in texts.items() if text is not None}
    more = special.get("additional_special_tokens")
    if isinstance(more, list):
        entries = [token_text(entry) for entry in cast(list[object], more)]
        tokens["additional_special_tokens"] = [text for text in entries if text is not None]
    sources = _named_sources(folder, config)
    if not sources:
        return None
    default = sources.get("default") or next(iter(sources.values()))
    return ChatTemplate(
        default,
        bos_token=texts.get("bos_token"),
        eos_token=texts.get("eos_token"),
        special_tokens=tokens,
        tool_source=sources.get("tool_use"),
    )


def _functions(tools: Sequence[Any] | None, reads: frozenset[str]) -> dict[str, str]:
    """The tools as the templates of Firefunction read them: JSON as text, and no text without any."""
    if not reads >= FIREFUNCTION:
        return {}
    return {FUNCTIONS: json.dumps(tools, indent=4, ensure_ascii=False) if tools else ""}


def missing_template(model: str) -> TemplateMissing:
    """The error for chat requests to a model without a chat template."""
    return TemplateMissing(
        f"{model} has no chat template, so messages cannot be turned into a prompt: use a plain prompt "
        "(headrace run --raw, /v1/completions), or put chat_template.jinja into the model's folder"
    )


_PARTS = ("'text'", '"text"', ".text")
_Inputs = Callable[["_Compiled", list[dict[str, Any]], list[Any] | None, Mapping[str, Any]], dict[str, Any]]


class _Compiled:
    def __init__(self, source: str) -> None:
        size_bytes = len(source.encode("utf-8", "surrogatepass"))
        if size_bytes > SOURCE_LIMIT_BYTES:
            raise TemplateError(
                f"the chat template has {size_bytes:,} bytes, the limit is {SOURCE_LIMIT_BYTES:,}"
            )
        self.source = source
        self._call_form: CallForm | None = None
        self._parts: bool | None = None
        try:
            self._template, self.reads = Sandbox().compile_template(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from error
        except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
            raise TemplateError(
                f"the chat template cannot be compiled, it is nested too deep ({error})"
            ) from error

    def in_its_form(self, messages: Sequence[Message], inputs: _Inputs) -> list[dict[str, Any]]:
        """The messages, with calls and missing content as the template renders them right."""
        values = template_messages(messages, knows_developer="developer" in self.source)
        if not any(value["content"] is None or value.get("tool_calls") for value in values):
            return values
        if self._call_form is None:
            self._call_form = call_form(self._probe(inputs))
        return [self._call_form.apply(value) for value in values]

    def takes_parts(self, inputs: _Inputs) -> bool:
        """Whether content is shown only as a list of parts."""
        if self._parts is None:
            mentions = any(mark in self.source for mark in _PARTS)
            self._parts = mentions and needs_parts(self._probe(inputs))
        return self._parts

    def _probe(self, inputs: _Inputs) -> Render:
        return lambda messages, tools: self.render(inputs(self, messages, tools, {}))

    def render(self, inputs: dict[str, Any]) -> str:
        try:
            budget = Budget(list(inputs.values()))
            context = self._template.new_context({**inputs, BUDGET: budget})
            pieces: list[str] = []
            size = 0
            for piece in self._template.root_render_func(context):
                budget.tick()
                size += len(piece)
                if size > budget.output_limit:
                    raise output_too_long(budget.output_limit)
                pieces.append(piece)
            return "".join(pieces)
        except TemplateError as error:
            line = self._line()
            where = f" (line {line} of the template)" if line else ""
            raise TemplateError(error.message + where) from error
        except Exception as error:  # errors raised inside a template are template errors
            reason = "it calls itself too often" if isinstance(error, RecursionError) else str(error)[:500]
            raise TemplateError(
                f"chat template, line {self._line()}: {type(error).__name__}: {reason}"
            ) from error

    def _line(self) -> int:
        """The template line that caused the exception being handled."""
        traceback: TracebackType | None = sys.exc_info()[2]
        line = 0
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == "<template>":
                line = self._template.get_corresponding_lineno(traceback.tb_lineno)
            traceback = traceback.tb_next
        return line


def _checked_variables(variables: Mapping[str, Any], tokens: Mapping[str, object]) -> dict[str, Any]:
    for name, value in variables.items():
        if not name.isidentifier() or name.startswith("_") or name in RESERVED or name in tokens:
            raise InvalidRequest(
                f"{name!r:.60} cannot be a template variable: it is not a plain name, or hides one of the "
                "template's own",
                param="chat_template_kwargs",
            )
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"template variable {name} is not JSON ({error})", param="chat_template_kwargs"
            ) from error
    return dict(variables)


def _mark_end(values: list[dict[str, Any]]) -> None:
    if not values or not values[-1].get("content"):
        raise InvalidRequest(
            "continue_final_message needs a last message with text to go on from",
            param="continue_final_message",
        )
    # The space after the marker shows whether the template trims messages.
    values[-1]["content"] += _CONTINUE_MARK + " "


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_CONTINUE_MARK)
    if end < 0:
        raise TemplateError(
            "the chat template does not show the text of the last message, so it cannot be continued"
        )
    keeps_spaces = text.startswith(_CONTINUE_MARK + " ", end)
    return text[:end] if keeps_spaces else text[:end].rstrip()


def _named_sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Template sources by name; sources with higher precedence hide others."""
    if (folder / "chat_template.jinja").is_file():
        more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        paths = {"default": folder / "chat_template.jinja"} | {path.stem: path for path in more}
        return {name: _read_text(path) for name, path in paths.items()}
    entry: object = read_object(folder / "chat_template.json").get(
        "chat_template", config.get("chat_template")
    )
    if entry is None:
        return {}
    if isinstance(entry, str):
        return {"default": entry}
    sources: dict[str, str] = {}
    for item in cast(list[Any], entry) if isinstance(entry, list) else [None]:
        named = cast(dict[str, object], item) if isinstance(item, dict) else {}
        name, source = named.get("name"), named.get("template")
        if not isinstance(name, str) or not isinstance(source, str):
            raise CorruptFile(
                f"{folder.name}: chat_template is neither a string nor a list of named templates"
            )
        sources[name] = source
    return sources


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{path.parent.name}/{path.name} is not UTF-8: fetch it again") from error
