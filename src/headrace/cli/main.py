"""The `headrace` command: loads the command's file, maps errors to stderr lines and exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn

import typer

from headrace import __version__
from headrace.cli.help_sections import SectionedCommand
from headrace.cli.usage_errors import WRONG_USAGE, usage_text
from headrace.errors import HeadraceError

COMMANDS = {
    "run": "Stream an answer to a prompt, or chat in the terminal.",
    "serve": "Serve models over OpenAI's, Anthropic's, Google's and Ollama's APIs.",
    "embed": "Turn texts into vectors.",
    "rerank": "Rank documents by how well they answer a query.",
    "classify": "Sort texts into labels: a model's own or yours.",
    "entities": "Find entities in a text, by labels of your own.",
    "redact": "Replace personal data in a text.",
    "ingest": "Put documents into an index.",
    "search": "Search indexes of documents, by words and by meaning.",
    "sql": "Run SQL over the datasets of headrace.toml.",
    "nsql": "Ask the datasets of headrace.toml a question in words.",
    "eval": "Score what models answer: to cases of a suite, or rows of datasets.",
    "ask": "Ask data and documents a question, answered with citations.",
    "agent": "Let a model use tools until a task is done.",
    "replay": "Compute requests of the journal again, and compare replies.",
    "explain": "Show where the time of a request went, or would go.",
    "requests": "List the latest requests of a running server.",
    "mcp": "Use MCP servers, and approve the tools that they offer.",
    "ps": "List the models of a running server.",
    "stop": "Unload a model of a running server.",
    "keys": "Create, list and revoke API keys of the server.",
    "spend": "Show, check and reconcile what requests cost.",
    "economics": "Compare machines of your own with an API, at any traffic.",
    "cluster": "Serve each model by several processes (replicas).",
    "simulate": "Simulate replicas that serve a trace, by routing policy.",
    "cache": "Show or empty the cache of answers.",
    "route": "Show how requests are routed, and calibrate cascades.",
    "adapt": "Learn from your traffic what a small model can answer.",
    "providers": "Keep keys of providers, and check that these answer.",
    "list": "List the models on this machine and the remote ones.",
    "show": "Show a model's properties, memory use and speed limits.",
    "quantize": "Convert a model to another weight type: GGUF or safetensors.",
    "prune": "Leave out layers, channels, heads, experts or weights.",
    "distil": "Let a small model learn what a larger one says.",
    "rm": "Delete a hub model from this machine.",
    "pull": "Download a model from the hub.",
    "bench": "Benchmark this machine, a model on it, or a server.",
    "import": "Read the configuration of another program.",
    "doctor": "Check this machine: kernels, memory, speed limits, caches.",
    "completion": "Complete commands, flags and models in your shell.",
}
HELP = """Run language models fast on this machine.

\b
First steps:
  headrace run "extract a gzipped tar archive"  a small model, a demonstration
  headrace run Qwen/Qwen3-0.6B                  chat with a model of the hub
  headrace run ./model.gguf                     or with one of your files
  headrace serve                                APIs on http://127.0.0.1:8080

Every setting is a flag, a variable (HEADRACE_PORT=9000) or a line in headrace.toml; flags win. `headrace
COMMAND -h` explains a command. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""
INTERRUPTED = 130
# NumPy's BLAS would have a pool of its own that competes with the engine's for the cores. On two busy ones
# (EPYC, 2026-11-24) training a classifier on 400 vectors takes 0.1 s with one thread, 1.1 to 3.4 s with two;
# a product of 64 by 512 by 2,048 takes 4 ms and 19 to 32. Read when NumPy is imported, which is later; what a
# user has set stays.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
COMPLETE = "_HEADRACE_COMPLETE"  # set by the shell's script, which then wants the possible next words


def build(arguments: Sequence[str]) -> typer.Typer:
    """The command line with the one command that `arguments` name; the others are only listed.

    Commands import their dependencies at the top of their files; loading one keeps `--help` and `--version`
    fast.
    """
    app = typer.Typer(
        help=HELP,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    _add(app, "headrace.cli", COMMANDS, [word for word in arguments if not word.startswith("-")])
    return app


def _add(app: typer.Typer, package: str, commands: Mapping[str, str], words: Sequence[str]) -> None:
    for name, summary in commands.items():
        if [name] != list(words[:1]):
            app.command(name, help=summary)(_unloaded)
            continue
        module = importlib.import_module(f"{package}.{name}")
        folder, default = getattr(module, "FOLDER", module.__name__), getattr(module, "DEFAULT", None)
        if default is not None and words[1:] and words[1] not in module.COMMANDS:
            module = importlib.import_module(f"{folder}.{default}")  # its name may be left out
        if hasattr(module, "COMMANDS"):  # a folder of subcommands
            group = typer.Typer(help=module.HELP, rich_markup_mode=None, no_args_is_help=True)
            _add(group, folder, module.COMMANDS, words[1:])
            app.add_typer(group, name=name, short_help=summary)
        else:
            app.command(name, cls=SectionedCommand, help=module.HELP, short_help=summary)(module.command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def _unloaded() -> None:
    raise AssertionError("only the named command is ever called")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(words)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.__context__, BrokenPipeError):
            _discard_output()
            # the reader of our output has exited (`| head`): typer reports this as a failure, but it is
            # none
            code = 0
    except WRONG_USAGE as error:
        print(usage_text(error), file=sys.stderr)
        code = 2
    except HeadraceError as error:
        print(f"error: {error.message}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = _interrupted()
    except OSError as error:
        # For example, a full disk under stdout.
        print(f"error: {error}", file=sys.stderr)
        _discard_output()
        code = 1
    sys.exit(code)


def _run(words: Sequence[str]) -> int:
    if COMPLETE in os.environ:  # the words are in a variable of the shell's script
        completion = importlib.import_module("headrace.cli.completion")
        app: Any = build(completion.words_so_far(os.environ))
        completion.prepare()
        app(prog_name="headrace", complete_var=COMPLETE)
        return 0
    app = build(words)
    code = app(words, prog_name="headrace", standalone_mode=False)
    if code == INTERRUPTED:  # typer's reply to Ctrl-C
        return _interrupted()
    return code if isinstance(code, int) else 0


def _interrupted() -> int:
    """The exit code after Ctrl-C, and on a terminal a line that says so."""
    if sys.stderr.isatty():
        print("\ninterrupted", file=sys.stderr)
    return INTERRUPTED


def _discard_output() -> None:
    """Discard pending stdout: it cannot be written, and Python would retry at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
