"""Plans and loads a model in a worker process, and provides the function that restarts it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from headrace.chat.templates.chat_template import ChatTemplate
from headrace.engine.client import EngineClient, LoadedModel, MemoryPlan
from headrace.loading.options import EngineOptions
from headrace.loading.text_assets import load_text_assets
from headrace.sampling.params import with_defaults
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.fitted_head import encoder_folder
from headrace.weights.head import chosen_head
from headrace.weights.hub.resolver import resolve
from headrace.weights.input_rules import read_input_rules
from headrace.workers.engine_client import RemoteEngineClient, Start
from headrace.workers.model_spec import ModelSpec
from headrace.workers.process import WorkerProcess
from headrace.workers.protocol import LoadModel, ModelReady, PlanModel
from headrace.workers.spawn import Spawner


class WorkerLoader:
    """Starts the process immediately; `plan`, then `load`, block. `close` abandons it before that.

    Models of one `spawner` take turns over the cores; so does a `process` that has one.
    """

    def __init__(
        self, spec: ModelSpec, process: WorkerProcess | None = None, *, spawner: Spawner | None = None
    ) -> None:
        self._spec = spec
        self._process = process or WorkerProcess(spawner=spawner)
        self._path: Path | None = None
        self._encoder: Path | None = None  # of a fitted classifier; of others the same
        self._text: tuple[Tokenizer, ChatTemplate | None] | None = None
        self._plan: MemoryPlan | None = None

    def plan(self, memory_bytes: int | None) -> MemoryPlan:
        """Memory plan within `memory_bytes` (None: all free memory). Raises OutOfMemory if it does not
        fit, after which it can be called again, or any other error of the model.
        """
        options = replace(self._spec.options, memory_bytes=memory_bytes)
        if self._path is None or self._encoder is None:
            self._path = resolve(self._spec.model, offline=options.offline)
            self._encoder = encoder_folder(self._path, offline=options.offline)
        self._process.put(PlanModel(str(self._encoder), options))
        if self._text is None:  # loaded here while the worker plans
            self._text = _text_side(self._encoder)
        self._plan = self._process.planned()
        return self._plan

    def load(self, progress: Callable[[int, int], None]) -> LoadedModel:
        """Load the model as planned, and start it. Raises the error that prevents it."""
        path, encoder, plan = self._path, self._encoder, self._plan
        assert path is not None and encoder is not None and plan is not None and self._text is not None
        self._process.put(LoadModel())
        ready = self._process.ready(progress)
        # A restarted worker gets the same KV cache size, whatever memory is free then.
        pinned = replace(self._spec.options, kv_cache_memory=plan.kv_bytes or None)
        restart = partial(_restart, str(encoder), pinned, self._maker(encoder))
        tokenizer, template = self._text
        return LoadedModel(
            name=self._spec.name,
            folder=path,
            context_length=plan.context,
            tokenizer=tokenizer,
            template=template,
            engine=self._client(self._process, ready, restart, plan),
            defaults=with_defaults(ready.defaults, self._spec.sampling),
            plan=plan,
            created_s=int(time.time()),
            template_variables=self._spec.template_variables,
            cache_failures=ready.cache_failures,
            cache_damages=ready.cache_damages,
            head=chosen_head(self._spec.options.pooling, path),
            input_rules=read_input_rules(encoder),
        )

    def _maker(self, path: Path) -> Callable[[], WorkerProcess]:
        """What makes further workers for the model at `path`."""
        return partial(WorkerProcess, spawner=self._process.spawner)

    def _client(
        self, process: WorkerProcess, ready: ModelReady, restart: Start, plan: MemoryPlan
    ) -> EngineClient:
        """What runs requests in the process, and in others that it starts."""
        return RemoteEngineClient(process, ready, restart)

    def close(self) -> None:
        """Stop the process; a `plan` or `load` in progress raises."""
        self._process.close()


def _restart(
    path: str,
    options: EngineOptions,
    make: Callable[[], WorkerProcess],
    adopt: Callable[[WorkerProcess], None],
) -> tuple[WorkerProcess, ModelReady]:
    process = make()
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
