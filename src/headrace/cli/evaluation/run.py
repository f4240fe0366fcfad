"""`headrace eval run`: a suite of cases, answered by one model or by two that are compared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from headrace.cli.flags import takes_settings
from headrace.cli.load_progress import loaded
from headrace.cli.server_call import ServerRefusal, call_server
from headrace.cli.terminal import JsonFlag, print_json, progress_bar
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.errors import HeadraceError, UsageError
from headrace.evals.intervals import Interval
from headrace.evals.running import AnswerSource, ModelScore, SuiteReport, run_suite
from headrace.evals.suite import Judge, read_suite
from headrace.llm import LLM

HELP = """Run a suite of cases in YAML, and score the answers; with two models, compare them case by case.

A suite has a name, an evaluator, and cases with a prompt and what is expected. Evaluators: exact, rules,
json_schema, sql (the rows of both statements are compared), judge (a model compares the answer with what is
expected, in both orders; labels of a person correct it), self_consistency. Means have 95 % intervals. Models
are loaded here, or asked of a running server with --server, where any of its models can be named. Exit code 1
where a mean is below the suite's at_least.

\b
Examples:
  headrace eval run refunds.yaml --model mini
  headrace eval run refunds.yaml --model Qwen/Qwen3-0.6B --model Qwen/Qwen3-4B --json
  headrace eval run refunds.yaml --server --model large
"""


class _Loaded:
    """A model of this process."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def answer(
        self,
        system: str,
        prompt: str,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        choices: Sequence[str] = (),
    ) -> str:
        """See `AnswerSource.answer`."""
        messages = _messages(system, prompt)
        given: dict[str, Any] = {"choice": list(choices)} if choices else {}
        given |= {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        return self._llm.chat(messages, **given).text


class _Served:
    """A model of a running server."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings, self._name = settings, name
        self._takes_choices = True

    def answer(
        self,
        system: str,
        prompt: str,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        choices: Sequence[str] = (),
    ) -> str:
        """See `AnswerSource.answer`."""
        body: dict[str, Any] = {"model": self._name, "messages": _messages(system, prompt)}
        body |= {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        found = self._asked(body, choices if self._takes_choices else ())
        try:
            return found["choices"][0]["message"]["content"] or ""
        except (KeyError, IndexError, TypeError):
            raise HeadraceError("the server's reply is no chat completion") from None

    def _asked(self, body: dict[str, Any], choices: Sequence[str]) -> Any:
        """The reply. A model of a provider may know no choices: then it says what it likes."""
        held = body | {"structured_outputs": {"choice": list(choices)}} if choices else body
        try:
            return call_server(self._settings, "POST", "/v1/chat/completions", held)
        except ServerRefusal:
            if not choices:
                raise
        self._takes_choices = False
        return self._asked(body, ())


def _messages(system: str, prompt: str) -> list[dict[str, str]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": prompt}]


@takes_settings("host", "port", "api_key", "admin_api_key", *MODEL_SETTINGS)
def command(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="The YAML file.")],
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Model that answers; given twice, both are compared."),
    ] = None,
    server: Annotated[bool, typer.Option("--server", help="Ask a running server.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Run it; see HELP."""
    found = read_suite(suite)
    names = model or ["mini"]
    if len(names) > 2:
        raise UsageError(f"{len(names)} models are named: name one, or two to compare")
    with ExitStack() as stack, progress_bar("running cases", unit="cases") as shown:
        current = stack.enter_context(ExitStack())

        def opening(name: str) -> Callable[[], AnswerSource]:
            def opened() -> AnswerSource:
                current.close()  # one model at a time
                if server:
                    return _Served(settings, name)
                return _Loaded(current.enter_context(loaded(name, settings)))

            return opened

        judge = opening(found.evaluator.model) if isinstance(found.evaluator, Judge) else None
        report = run_suite(found, [(name, opening(name)) for name in names], judge, shown)
    if json:
        print_json(msgspec.to_builtins(report))
    else:
        _show(report)
    if any(one.passed is False or not one.scored for one in report.models):
        sys.exit(1)


def _show(report: SuiteReport) -> None:
    print(f"{report.suite}: {report.cases:,} cases, evaluator {report.evaluator}")
    for one in report.models:
        _show_model(one)
    if (found := report.comparison) is not None:
        first, second = (one.model for one in report.models)
        said = "differs" if found.is_significant else "no difference is shown"
        print(
            f"{second} less {first}: {found.difference:+.1%} [{found.low:+.1%}, {found.high:+.1%}], {said}; "
            f"better {found.better:,}, same {found.same:,}, worse {found.worse:,}"
        )


def _show_model(one: ModelScore) -> None:
    bound = "" if one.passed is None else ", passed" if one.passed else ", below at_least"
    errors = f", {one.errors:,} not scored" if one.errors else ""
    print(f"{one.model}: {_interval(one.score)} of {one.scored:,}{errors}{bound}")
    if one.judge is not None:
        told = f"corrected by {one.judge.labels:,} labels: {_interval(one.corrected)}"
        said = told if one.corrected is not None else "not calibrated: give labels of a person"
        print(
            f"  judge {one.judge.model}: {said}; of {one.judge.asked:,} verdicts {one.judge.unreadable:,} "
            f"could not be read, {one.judge.swayed:,} pairs went by their order"
        )
    for case in one.failed:
        print(f"  case {case.case}: {case.problem}")


def _interval(found: Interval | None) -> str:
    return "no score" if found is None else f"{found.mean:.1%} [{found.low:.1%}, {found.high:.1%}]"
