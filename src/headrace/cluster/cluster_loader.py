"""Plans and loads a model in several worker processes."""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from headrace.cluster.cluster_client import ClusterClient
from headrace.cluster.ray_launcher import RayLauncher
from headrace.cluster.remote_replica import RemoteReplicas
from headrace.cluster.replica_pool import ReplicaRefused
from headrace.config.cluster_settings import ClusterSettings
from headrace.engine.client import EngineClient, MemoryPlan
from headrace.errors import InvalidRequest, OutOfMemory
from headrace.loading.loader import usable_cores
from headrace.weights.checkpoint import open_checkpoint
from headrace.workers.engine_client import Start
from headrace.workers.model_spec import ModelSpec
from headrace.workers.process import WorkerProcess
from headrace.workers.protocol import ModelReady
from headrace.workers.spawn import Spawner
from headrace.workers.worker_loader import WorkerLoader


class ClusterLoader(WorkerLoader):
    """As WorkerLoader, for several processes: those of this machine share the memory of one and, without a
    given number of threads, the cores."""

    def __init__(
        self,
        spec: ModelSpec,
        settings: ClusterSettings,
        process: WorkerProcess | None = None,
        *,
        spawner: Spawner | None = None,
    ) -> None:
        self._here = settings.most if settings.launcher == "local" or "RAY_ADDRESS" not in os.environ else 1
        cores, threads = usable_cores(), spec.options.threads
        if threads is None:
            threads = max(1, cores // self._here)
            spec = replace(spec, options=replace(spec.options, threads=threads))
        if threads * self._here > max(cores, self._here):
            LOG.warning(
                "%d replicas with %d threads each share %d cores and will wait for each other: give fewer "
                "--threads or --replicas",
                *(self._here, threads, cores),
            )
        if settings.launcher == "ray" and "RAY_ADDRESS" in os.environ and _is_loopback(settings.listen):
            LOG.warning(
                "replicas on other machines cannot connect to %s: give an address of this machine that they "
                "reach with --listen",
                settings.listen,
            )
        super().__init__(spec, process, spawner=spawner)
        self._settings = settings
        self._closed: Callable[[], None] = lambda: None

    def plan(self, memory_bytes: int | None) -> MemoryPlan:
        """The plan of all processes together, as far as its total; the rest is that of one."""
        most = self._here
        try:
            plan = super().plan(None if memory_bytes is None else max(1, memory_bytes // most))
        except OutOfMemory as error:
            if most == 1:
                raise
            raise OutOfMemory(
                f"each of {most} replicas may have 1/{most} of the memory for models: {error.message}",
                needed_bytes=error.needed_bytes * most,
            ) from None
        return replace(plan, base_bytes=plan.base_bytes + (most - 1) * plan.total_bytes, process_bytes=())

    def _maker(self, path: Path) -> Callable[[], WorkerProcess]:
        if self._settings.launcher == "local":
            return super()._maker(path)
        launch = RayLauncher(self._spec.options.threads or 1)
        self._closed = launch.close
        listen, here = self._settings.listen, "RAY_ADDRESS" not in os.environ
        return RemoteReplicas(launch, path, host=listen, spawner=self._process.spawner, here=here)

    def _client(
        self, process: WorkerProcess, ready: ModelReady, restart: Start, plan: MemoryPlan
    ) -> EngineClient:
        assert self._encoder is not None
        start = CheckedStart(restart, self._encoder)
        return ClusterClient(process, start.named(ready), start, self._settings, plan, self._closed)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


LOG = logging.getLogger("headrace.cluster")

TEXT_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "tokenizer.model"),
)
"""The server has these in memory: they do not change while it runs."""


class CheckedStart:
    """Starts replicas of the weights that the first one has, and refuses others."""

    def __init__(self, start: Start, path: Path) -> None:
        self._start, self._path = start, path
        self._digest, self._texts = self._found(), self._text_digest()
        self.generation = 0

    def __call__(self, adopt: Callable[[WorkerProcess], None]) -> tuple[WorkerProcess, ModelReady]:
        """As the function that it has. Raises ReplicaRefused."""
        if self._found() != self._digest:
            raise ReplicaRefused(
                f"the weights in {self._path.name} have changed since the model was loaded, and a reply "
                "must not depend on its replica: `headrace cluster replace` takes the new ones"
            )
        process, ready = self._start(adopt)
        return process, self.named(ready)

    def named(self, ready: ModelReady) -> ModelReady:
        """Of a replica of the present weights: its pages mean nothing to replicas of others."""
        of_weights = f"{self._digest}\n{ready.page_class}"
        return replace(ready, page_class=of_weights) if ready.page_class else ready

    def accept(self) -> Callable[[], None]:
        """The present weights are those of all replicas from now on; what takes that back. InvalidRequest
        where the tokenizer or the chat template is another one."""
        if self._text_digest() != self._texts:
            raise InvalidRequest(
                f"the tokenizer or the chat template in {self._path.name} has changed, and the server has "
                "the old one: unload and load the model, or restart the server"
            )
        before, generation = self._digest, self.generation
        self._digest = self._found()
        self.generation += self._digest != before

        def take_back() -> None:
            self._digest, self.generation = before, generation

        return take_back

    @property
    def has_changed(self) -> bool:
        """Whether the files are others than those that replicas have."""
        return self._found() != self._digest

    def _text_digest(self) -> str:
        """Of a folder's files; a single file has its texts beside its weights."""
        files = [self._path / name for name in TEXT_FILES] if self._path.is_dir() else []
        digest = hashlib.sha256()
        for one in files:
            digest.update(one.read_bytes() if one.is_file() else b"none")
        return digest.hexdigest()

    def _found(self) -> str:
        with open_checkpoint(self._path) as checkpoint:
            return checkpoint.fingerprint
