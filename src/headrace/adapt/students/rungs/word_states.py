"""What a tagger of this machine knows of the words of questions, in a server and in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.adapt.students.rungs.answer_form import AnswerForm
from headrace.adapt.students.rungs.tagging import ReadText, Tagger, features_of
from headrace.adapt.students.student import StudentAnswer, StudentModel
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext, new_request_id
from headrace.inference.keywords import new_id
from headrace.inference.local_handler import LocalHandler
from headrace.inference.loop_thread import LoopThread
from headrace.inference.model_runner import ModelRunner
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.inference.requests import EmbeddingRequest
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.storage.keys import KeyLimits
from headrace.tasks.entities import finder_of

AT_A_TIME = 32
"""Questions whose states are in memory together."""
Reads = Callable[[AnswerForm, Sequence[str]], list[ReadText | None]]


async def read_texts(
    runner: ModelRunner,
    tagger: str,
    form: AnswerForm,
    texts: Sequence[str],
    call: CallContext,
    priority: int = 0,
) -> list[ReadText | None]:
    """Questions as a head reads them; None for those that are too long. Raises what `ModelRunner.lease` and
    `rows` do."""
    found: list[ReadText | None] = []
    async with runner.lease(tagger, call, "entities") as model:
        finder = await runner.in_thread(model, lambda: finder_of(model))
        frame = finder.frame(model.tokenizer, form.labels)
        begin = len(frame.before)
        room = model.context_length - begin - len(frame.after)
        for start in range(0, len(texts), AT_A_TIME):
            part = texts[start : start + AT_A_TIME]
            units = await runner.in_thread(
                model, lambda part=part: [finder.units(model.tokenizer, one) for one in part]
            )
            request = EmbeddingRequest(
                id=new_id(),
                model=model.name,
                inputs=tuple(
                    (*frame.before, *one.ids, *frame.after) for one in units if len(one.ids) <= room
                ),
                task="entities",
                priority=priority,
            )
            rows = iter(await runner.rows(request, call) if request.inputs else ())
            for text, one in zip(part, units, strict=True):
                if len(one.ids) > room:
                    found.append(None)
                    continue
                states = next(rows)[begin:][one.starts[:-1]]
                words = form.words(text)
                found.append(ReadText(text, words, features_of(text, words, one.characters, states)))
    return found


async def tagged(
    runner: ModelRunner, model: StudentModel, texts: Sequence[str], call: CallContext, priority: int = 0
) -> list[StudentAnswer]:
    """What a student says to questions."""
    tagger = Tagger(model)
    own = call.nested("student", background=priority > 0)
    return [
        tagger.answer(one) for one in await read_texts(runner, model.base, tagger.form, texts, own, priority)
    ]


@contextmanager
def reader(folder: Path, threads: int | None = None) -> Generator[Reads]:
    """A tagger in this process, until the block ends. Raises what prevents loading it."""
    model = load_model(str(folder), EngineOptions(threads=threads, cache_dir=None))
    try:
        threads_of, loop = ModelThreads(1), LoopThread()
        source = OneModel(model)
        handler = LocalHandler(source, threads_of)
        runner = ModelRunner(handler, source, threads_of)

        def reads(form: AnswerForm, texts: Sequence[str]) -> list[ReadText | None]:
            call = CallContext(request_id=new_request_id(), account=Account("", KeyLimits()), background=True)
            return loop.run(read_texts(runner, model.name, form, texts, call))

        try:
            yield reads
        finally:
            handler.close()
            loop.close()
            threads_of.close()
    finally:
        model.close()
