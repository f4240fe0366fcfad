"""`headrace agent`: a model that uses tools until a task is done."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from headrace.agents import Agent, AgentResult
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.inference.events import InferenceEvent, ToolCalled, ToolReturned

HELP = """Let a model use tools until a task is done.

Tools are `sql` (the datasets of headrace.toml), `mcp:SERVER` (its approved tools) and `mcp:SERVER/TOOL`.
Calls that do not only read are asked about. Each step is kept in the store: a run that was interrupted goes
on with --resume.

\b
Examples:
  headrace agent run "Who are our oldest customers?" --tool sql
  headrace agent run "File the report" --tool sql --tool mcp:wiki --steps 8 --seconds 120
  headrace agent run "File the report" --tool sql --tool mcp:wiki --resume run_0f3c…
"""


class AgentAction(StrEnum):
    """Subcommands."""

    RUN = "run"


@takes_settings("datasets", "sql", "mcp", "mcp_lock", "store", "cache_dir")
def command(
    action: Annotated[AgentAction, typer.Argument(metavar="ACTION", help="Subcommand.")],
    task: Annotated[str, typer.Argument(metavar="TASK", help="What is to be done.")],
    tool: Annotated[list[str] | None, typer.Option(help="A tool; may be given several times.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model.")] = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Most answers of the model.")] = 12,
    calls: Annotated[int, typer.Option(min=0, help="Most tool calls.")] = 64,
    tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of prompts and answers.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Most seconds for the run.")] = None,
    pattern: Annotated[str | None, typer.Option(help="A pattern that the answer must match.")] = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Resume this run.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Make all calls without asking.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Run it; see HELP."""
    budget = {"steps": steps, "tool_calls": calls, "tokens": tokens, "seconds": seconds}
    with Agent(
        model,
        tools=tool or (),
        budget={name: value for name, value in budget.items() if value is not None},
        verify=[] if pattern is None else [{"kind": "regex", "pattern": pattern}],
        approve=(lambda name, arguments: True) if yes else _asked,
        store=settings.store_file,
        settings=settings,
    ) as agent:
        result = agent.run(task, run_id=resume, on_event=None if json else _shown)
    if json:
        print_json(msgspec.to_builtins(result))
    else:
        print(result.text)
        note(_ending(result))
    if result.reason != "stop":
        raise typer.Exit(1)


def _asked(name: str, arguments: dict[str, Any]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"{name} is not called without asking: run this on a terminal, or with --yes")
    return typer.confirm(f"call {name} with {msgspec.json.encode(arguments).decode()}?")


def _shown(event: InferenceEvent) -> None:
    if isinstance(event, ToolCalled):
        note(f"{event.name} {event.arguments}")
    elif isinstance(event, ToolReturned):
        note(f"  {'failed: ' if event.is_error else ''}{' '.join(event.output.split())[:200]}")


def _ending(result: AgentResult) -> str:
    used = (
        f"{result.usage.prompt_tokens + result.usage.completion_tokens:,} tokens, {len(result.calls)} calls"
    )
    if result.reason == "stop":
        return used
    return f"ended by {result.reason} after {used}: go on with --resume {result.run_id} and a larger budget"
