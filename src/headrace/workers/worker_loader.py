"""A model on its way into a worker process: planned, loaded, and started again when its worker dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from headrace.chat.templates.chat_template import ChatTemplate
from headrace.engine.client import LoadedModel, MemoryPlan
from headrace.loading.options import EngineOptions
from headrace.loading.text_assets import load_text_assets
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.hub.resolver import resolve
from headrace.workers.engine_client import RemoteEngineClient
from headrace.workers.model_spec import ModelSpec
from headrace.workers.process import WorkerProcess
from headrace.workers.protocol import LoadModel, ModelReady, PlanModel


class WorkerLoader:
    """Starts the process at once; `plan`, then `load`, block. Whoever gives up halfway must `close`."""

    def __init__(self, spec: ModelSpec, process: WorkerProcess | None = None) -> None:
        self._spec = spec
        self._process = process or WorkerProcess()
        self._path: Path | None = None
        self._text: tuple[Tokenizer, ChatTemplate | None] | None = None
        self._plan: MemoryPlan | None = None

    def plan(self, memory_bytes: int | None) -> MemoryPlan:
        """What the model takes of `memory_bytes` (None: of all that is free); OutOfMemory where it does not
        fit, after which it can be asked again. Raises also whatever is wrong with the model."""
        options = replace(self._spec.options, memory_bytes=memory_bytes)
        if self._path is None:
            self._path = resolve(self._spec.model, offline=options.offline)
        self._process.put(PlanModel(str(self._path), options))
        if self._text is None:  # while the worker does its part
            self._text = _text_side(self._path)
        self._plan = self._process.planned()
        return self._plan

    def load(self, progress: Callable[[int, int], None]) -> LoadedModel:
        """The model as planned, running. Raises what is wrong with it."""
        path, plan = self._path, self._plan
        assert path is not None and plan is not None and self._text is not None
        self._process.put(LoadModel())
        ready = self._process.ready(progress)
        # The same keys and values again, whatever memory is free when a worker has died.
        pinned = replace(self._spec.options, kv_memory_bytes=plan.kv_bytes or None)
        tokenizer, template = self._text
        return LoadedModel(
            name=self._spec.name,
            folder=path,
            context_length=plan.context,
            tokenizer=tokenizer,
            template=template,
            engine=RemoteEngineClient(self._process, ready, partial(_restart, str(path), pinned)),
            defaults=ready.defaults,
            plan=plan,
            created_s=int(time.time()),
            cache_failures=ready.cache_failures,
        )

    def close(self) -> None:
        """End the process; a `plan` or `load` under way raises."""
        self._process.close()


def _restart(
    path: str, options: EngineOptions, adopt: Callable[[WorkerProcess], None]
) -> tuple[WorkerProcess, ModelReady]:
    process = WorkerProcess()
    adopt(process)
    try:
        process.put(PlanModel(path, options))
        process.planned()
        process.put(LoadModel())
        return process, process.ready(lambda done, total: None)
    except BaseException:
        process.close()
        raise


def _text_side(path: Path) -> tuple[Tokenizer, ChatTemplate | None]:
    if path.is_dir():
        return load_text_assets(path, None)
    with open_checkpoint(path) as checkpoint:
        return load_text_assets(path, checkpoint.metadata)
