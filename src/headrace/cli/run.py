"""`headrace run`: stream an answer to a prompt, or chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from headrace.cli.answer_printer import AnswerPrinter, fills_context
from headrace.cli.chat import chat
from headrace.cli.explain_text import explain_text
from headrace.cli.flags import takes_sampling, takes_settings
from headrace.cli.load_progress import loaded
from headrace.cli.model_argument import ModelArgument, names_a_model
from headrace.cli.prompt_input import whole_prompt
from headrace.cli.sql_schema import tables_of
from headrace.cli.statistics import Statistics, StatisticsReader
from headrace.cli.terminal import JsonFlag, note, print_json, warn
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.errors import UsageError
from headrace.inference.adapted_engine import adapted_name
from headrace.inference.completion import Completion, CompletionChunk
from headrace.inference.model_runner import can_do
from headrace.llm import LLM

HELP = """Stream an answer to a prompt, or chat in the terminal.

MODEL is a folder, x.gguf, OWNER/NAME of the hub, or a bundled model; without one it is mini, which ships with
headrace and knows shell commands and SQL. A single argument is MODEL when it is an existing folder, a .gguf
file, OWNER/NAME, a bundled name or starts with ./ ../ / or ~/ ; anything else is PROMPT.

Text that is piped in is appended to PROMPT; without a PROMPT, or with "-", it is the prompt. Without either,
on a terminal, it is a chat. The answer goes to stdout, everything else to stderr.

\b
Examples:
  headrace run "extract a gzipped tar archive"
  headrace run Qwen/Qwen3-0.6B "What is a headrace?" --quantization int4
  cat letter.txt | headrace run ./my-model "Summarize this in one sentence:"
  headrace run ./my-model "Which teams?" --adapter ./my-adapter
  headrace run ./my-model --system "You are a patient teacher."
"""

TASK_COMMANDS: Mapping[str, str] = {
    "embed": "embed",
    "classify": "classify",
    "token_embed": "rerank",
    "rerank": "rerank",
    "entities": "entities",
    "token_classify": "entities",
}
"""Which command asks a model for what it can do; sparse vectors have none."""


@takes_settings(*MODEL_SETTINGS)
@takes_sampling
def command(
    model: ModelArgument = None,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="Text to answer; - reads stdin.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without template.")] = False,
    system: Annotated[str | None, typer.Option(help="System message.", metavar="TEXT")] = None,
    adapter: Annotated[
        Path | None,
        typer.Option(help="LoRA adapter of the model: a folder of PEFT, or a GGUF file.", metavar="PATH"),
    ] = None,
    sql_schema: Annotated[
        str | None,
        typer.Option(
            help='The answer is one SELECT statement over these tables: "players(name, team); teams(name)", '
            "or a FILE of such lines or CREATE TABLE statements. The prompt should name them, too.",
            metavar="TABLES",
        ),
    ] = None,
    json: JsonFlag = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print where the time of the answer went, too.")
    ] = False,
    stats: Annotated[
        bool | None,
        typer.Option(
            help="Print token counts and the share of memory bandwidth, too; --no-stats: not even the speed."
        ),
    ] = None,
    *,
    sampling: dict[str, Any],
    settings: Settings,
) -> None:
    """Run it; see HELP."""
    if prompt is None and model is not None and not names_a_model(model):
        model, prompt = None, model
    if raw and system is not None:
        raise UsageError("--system needs the chat template, which --raw leaves out: drop one of them")
    if sql_schema is not None:
        sampling["sql"] = tables_of(sql_schema)
    prompt = whole_prompt(prompt)
    if prompt is None and (raw or json or explain):
        raise UsageError("a chat in the terminal takes no --raw, --json or --explain: give a PROMPT")
    if explain:
        sampling["explain"] = True
    if adapter is not None:
        sampling["adapter"] = adapter.stem or "adapter"
    adapters = None if adapter is None else {sampling["adapter"]: adapter}
    with loaded(model, settings, adapters) as llm:
        _check_generates(llm, model)
        statistics = StatisticsReader(llm, settings, shown=stats)
        if prompt is None:
            chat(llm, sampling, system=system, statistics=statistics)
            return
        printer = AnswerPrinter(echo=not json)
        completion: Completion | None = None
        for chunk in _stream(llm, prompt, sampling, raw=raw, system=system):
            printer.print(chunk)
            completion = chunk.completion
        printer.end()
        assert completion is not None
        warn(completion.warnings)
        if json:
            print_json(_report(llm, completion, statistics.read(completion), sampling.get("adapter")))
        else:
            statistics.show(completion)
            if completion.explain is not None:
                note(explain_text(completion.explain))
            if fills_context(completion, llm):
                note(f"the answer ended where the context of {llm.model.context_length:,} tokens is full")


def _check_generates(llm: LLM, given: str | None) -> None:
    """UsageError that names the command for a model, `given` so, that generates nothing."""
    tasks = llm.model.tasks
    if "generate" in tasks:
        return
    name, commands = llm.model.name, dict.fromkeys(filter(None, map(TASK_COMMANDS.get, tasks)))
    remedy = ", ".join(f"`headrace {command} --model {given or name}`" for command in commands)
    raise UsageError(
        f"{name} generates no text, it can {can_do(tasks)}" + (f": use {remedy}" if remedy else ""),
        param="model",
    )


def _stream(
    llm: LLM, prompt: str, sampling: dict[str, Any], *, raw: bool, system: str | None
) -> Iterator[CompletionChunk]:
    if raw:
        return llm.stream(prompt, **sampling)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.stream_chat([*messages, {"role": "user", "content": prompt}], **sampling)


def _report(
    llm: LLM, completion: Completion, statistics: Statistics, adapter: str | None
) -> dict[str, object]:
    return {
        "model": llm.model.name if adapter is None else adapted_name(llm.model.name, adapter),
        "text": completion.text,
        "reasoning": completion.reasoning,
        "finish_reason": completion.finish_reason,
        "stop": completion.choices[0].stop,
        "seed": completion.seed,
        "usage": to_builtins(completion.usage),
        "timing": to_builtins(completion.timing),
        "statistics": to_builtins(statistics),
        "warnings": to_builtins(completion.warnings),
        **({} if completion.explain is None else {"explain": to_builtins(completion.explain)}),
    }
