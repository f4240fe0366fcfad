"""What the commands of `headrace adapt` begin with: the file of what was collected, a task, an encoder."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from headrace.adapt.fine_tuning.base import base_folder
from headrace.adapt.schema import open_adapt
from headrace.adapt.traffic.examples import ExampleStore, TaskRow
from headrace.adapt.traffic.tasks import Embed
from headrace.cli.load_progress import loaded
from headrace.config.adapt_settings import AdaptSettings, read_adapt
from headrace.config.settings import Settings
from headrace.workers.model_spec import read_specs


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
        yield ExampleStore(database, settings.node_usd_per_hour or 0.0)
    finally:
        database.close()


def weights_here(model: str, settings: Settings) -> Path:
    """The folder of a model of the settings, or of a shipped one, that adapters can be trained on."""
    specs = {name: one for one in read_specs([], settings) for name in (one.name, *one.aliases)}
    return base_folder(specs[model].model if model in specs else model, model)


@contextmanager
def opened_task(word: str, settings: Settings) -> Generator[OpenedTask]:
    """The task of that id, beginning of an id, or name, with the encoder loaded, until the block ends."""
    adapt = read_adapt(settings.adapt)
    with opened_store(settings) as store:
        task = store.task(word)  # before a model is loaded for nothing
        with loaded(adapt.encoder, settings) as llm:
            yield OpenedTask(task, store, adapt, partial(llm.embed, truncate=True))
