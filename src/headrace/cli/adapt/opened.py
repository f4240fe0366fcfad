"""What the commands of `headrace adapt` begin with: the file of what was collected, a task, an encoder."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from msgspec import Struct

from headrace.adapt.examples import ExampleStore, TaskRow
from headrace.adapt.schema import open_adapt
from headrace.adapt.tasks import Embed
from headrace.cli.load_progress import loaded
from headrace.config.adapt_settings import AdaptSettings, read_adapt
from headrace.config.settings import Settings


class OpenedTask(Struct, frozen=True):
    """A task, what was collected, and the encoder that students of it read."""

    task: TaskRow
    store: ExampleStore
    adapt: AdaptSettings
    embed: Embed


@contextmanager
def opened_store(settings: Settings) -> Generator[ExampleStore]:
    """What was collected, until the block ends."""
    database = open_adapt(settings.store_file)
    try:
        yield ExampleStore(database)
    finally:
        database.close()


@contextmanager
def opened_task(word: str, settings: Settings) -> Generator[OpenedTask]:
    """The task of that id, beginning of an id, or name, with the encoder loaded, until the block ends."""
    adapt = read_adapt(settings.adapt)
    with opened_store(settings) as store:
        task = store.task(word)  # before a model is loaded for nothing
        with loaded(adapt.encoder, settings) as llm:
            yield OpenedTask(task, store, adapt, partial(llm.embed, truncate=True))
