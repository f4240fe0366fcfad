"""What answers a command of a task: a model that is loaded in this process, or a running server."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from headrace.cli.load_progress import loaded
from headrace.cli.model_argument import complete_model
from headrace.cli.server_call import call_server
from headrace.cli.terminal import warn
from headrace.config.settings import MODEL_SETTINGS, SETTINGS, Settings
from headrace.config.sources import load_settings
from headrace.errors import UsageError
from headrace.inference.events import ParameterWarning
from headrace.llm import LLM
from headrace.tasks.task_limits import MAX_TEXTS

T = TypeVar("T")
SERVER_SETTINGS = ("host", "port", "api_key")
TAGGER = "tagger"
"""The model that finds entities where none is named."""
TASK_SETTINGS = (*SERVER_SETTINGS, *MODEL_SETTINGS)
ServerFlag = Annotated[
    bool,
    typer.Option(
        "--server",
        help="Ask the running server at --host and --port, which keeps models in memory.",
    ),
]
ModelFlag = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Folder, OWNER/NAME or bundled model; with --server a name that it serves, without one the first"
        " that can do this.",
        metavar="MODEL",
        autocompletion=complete_model,
    ),
]
TruncateFlag = Annotated[
    bool, typer.Option("--truncate", help="Cut texts that are too long for the model, with a warning.")
]


def in_parts(texts: list[str], most: int = MAX_TEXTS) -> Iterator[tuple[int, list[str]]]:
    """As many texts as a request takes, up to `most`, and the index of the first."""
    size = max(1, min(most, MAX_TEXTS))
    for first in range(0, len(texts), size):
        yield first, texts[first : first + size]


class _Warned(msgspec.Struct, frozen=True):
    """What is read of any reply."""

    warnings: list[ParameterWarning] = []


class TaskModel:
    """Asks either the loaded model or the server."""

    def __init__(self, settings: Settings, name: str | None, llm: LLM | None) -> None:
        self._settings, self._name, self._llm = settings, name, llm

    @property
    def loaded(self) -> LLM:
        """The loaded model, where there is no server."""
        assert self._llm is not None
        return self._llm

    def ask(
        self, here: Callable[[LLM], T], path: str, body: Mapping[str, object], read: Callable[[Any], T]
    ) -> T:
        """What `here` makes of the loaded model, or `read` of the server's reply to `body` without what is
        None."""
        if self._llm is not None:
            return here(self._llm)
        sent = {name: value for name, value in {"model": self._name, **body}.items() if value is not None}
        reply = call_server(self._settings, "POST", path, sent)
        if isinstance(reply, dict):
            warn(msgspec.convert(reply, _Warned).warnings)
        return read(reply)


@contextmanager
def task_model(settings: Settings, name: str | None, default: str, *, server: bool) -> Generator[TaskModel]:
    """The model `name`, or `default`, until the block ends; or the server, which keeps its own default."""
    if server:
        _check_unused(settings)
        yield TaskModel(settings, name, None)
        return
    with loaded(name or default, settings) as llm:
        yield TaskModel(settings, name, llm)


def _check_unused(settings: Settings) -> None:
    """UsageError for flags of a model that the server has loaded in its own way."""
    default = load_settings()
    for name in MODEL_SETTINGS:
        if getattr(settings, name) != getattr(default, name):
            flag = SETTINGS[name].flag
            raise UsageError(
                f"{flag} has no effect with --server: drop it, or give it to `headrace serve`", param=name
            )
