"""`headrace adapt shadow`: judge a student beside what answers today."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import typer

from headrace.adapt.actions import plain, shadow
from headrace.adapt.decisions.comparisons import AnswerPair, JudgedPair
from headrace.adapt.decisions.judging import JudgeReply, compared, left_today
from headrace.adapt.schema import adapt_file
from headrace.adapt.students.ladder import TaskExample
from headrace.adapt.students.registry import StudentRow, person
from headrace.adapt.students.rungs.tagging import Tagger
from headrace.adapt.students.rungs.teaching import ADAPTER, WHOLE, students_folder
from headrace.adapt.students.rungs.word_states import reader
from headrace.adapt.students.rungs.writing import conversation_of, tokens_of, writer
from headrace.adapt.students.student import StudentAnswer
from headrace.cli.adapt.opened import OpenedTask, opened_task, weights_here
from headrace.cli.flags import takes_settings
from headrace.cli.load_progress import loaded
from headrace.cli.terminal import JsonFlag, print_json, printable
from headrace.config.providers import is_remote
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.config.sources import model_entries
from headrace.errors import InvalidRequest
from headrace.evals.judging import PREFERS
from headrace.llm import LLM

HELP = """Judge the student of a task by every request that came since it was made, and by all that follow.

A running server goes on with it and logs a line when the student is ready; clients see nothing of it. Where a
judge compares answers (adapt.judge), a model of this machine is loaded for that; a provider's is asked by the
running server alone. Then people check it: `headrace adapt label`.

\b
Example:
  headrace adapt shadow t-3fa2
"""


@takes_settings("store", *MODEL_SETTINGS)
def command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id, beginning of an id, or name.")],
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Judge it; see HELP."""
    with ExitStack() as stack, opened_task(task, settings) as opened:
        judge, compare = opened.adapt.judge, None
        if judge is not None and not _is_remote(judge, settings):
            compare = _LoadedJudge(settings, opened, stack).compare
        written = partial(_written, settings)
        found = shadow(
            *(opened.store, opened.task.id, opened.embed, person(), written), judge=judge, compare=compare
        )
    if json:
        print_json(plain(found))
    elif found.prospect is not None:
        print(printable(found.prospect.line))
    else:
        print(f"the student of task {opened.task.id} is worse than the margin allows")


def _is_remote(model: str, settings: Settings) -> bool:
    """Whether a provider answers for a model: a running server asks it, and books what it costs."""
    entry = model_entries().get(model)
    return is_remote(entry) or (entry is None and model.partition("/")[0] in (settings.providers or {}))


class _LoadedJudge:
    """A judge of this machine, which is loaded when it is first asked, until `stack` is closed."""

    def __init__(self, settings: Settings, opened: OpenedTask, stack: ExitStack) -> None:
        self._settings, self._opened, self._stack = settings, opened, stack
        self._llm: LLM | None = None

    def compare(self, student: StudentRow, pairs: Sequence[AnswerPair]) -> list[JudgedPair]:
        """See `comparisons.Compare`."""
        few = pairs[: left_today(self._opened.store.database, self._opened.adapt.judge_pairs)]
        if not few or _is_remote(student.judge, self._settings):
            return []
        if self._llm is None:
            self._llm = self._stack.enter_context(loaded(student.judge, self._settings))
        return compared(student.judge, partial(_asked, self._llm), few, at_once=1)


def _asked(llm: LLM, system: str, prompt: str, tokens: int) -> JudgeReply:
    said = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    try:
        return JudgeReply(llm.chat(said, choice=list(PREFERS), max_tokens=tokens, temperature=0.0).text)
    except InvalidRequest:  # such as a conversation that is too long for it
        return JudgeReply("")


def _written(settings: Settings, row: StudentRow, examples: Sequence[TaskExample]) -> list[StudentAnswer]:
    """What a student says that makes its answers: its model and weights are loaded for it."""
    if not row.model.is_loaded:
        head = Tagger(row.model)
        with reader(weights_here(row.model.base, settings)) as reads:
            return [head.answer(one) for one in reads(head.form, [one.question for one in examples])]
    folder = students_folder(adapt_file(settings.store_file)) / row.id
    base, adapter = (folder / WHOLE, None)
    if row.model.base:
        base, adapter = weights_here(row.model.base, settings), folder / ADAPTER
    with writer(base, adapter) as student:
        return student.answers([conversation_of(one) or () for one in examples], tokens_of(examples))
