"""Plans and loads a model in several worker processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from headrace.cluster.cluster_client import ClusterClient
from headrace.cluster.ray_launcher import RayLauncher
from headrace.cluster.remote_replica import RemoteReplicas
from headrace.cluster.replica_pool import ReplicaRefused
from headrace.config.cluster_settings import ClusterSettings
from headrace.engine.client import EngineClient, MemoryPlan
from headrace.loading.loader import usable_cores
from headrace.weights.checkpoint import open_checkpoint
from headrace.workers.engine_client import Start
from headrace.workers.model_spec import ModelSpec
from headrace.workers.process import WorkerProcess
from headrace.workers.protocol import ModelReady
from headrace.workers.spawn import Spawner
from headrace.workers.worker_loader import WorkerLoader


class ClusterLoader(WorkerLoader):
    """As WorkerLoader, for `settings.most` processes within the memory of one. Without a given number of
    threads these share the cores."""

    def __init__(
        self,
        spec: ModelSpec,
        settings: ClusterSettings,
        process: WorkerProcess | None = None,
        *,
        spawner: Spawner | None = None,
    ) -> None:
        if spec.options.threads is None:
            threads = max(1, usable_cores() // settings.most)
            spec = replace(spec, options=replace(spec.options, threads=threads))
        super().__init__(spec, process, spawner=spawner)
        self._settings = settings

    def plan(self, memory_bytes: int | None) -> MemoryPlan:
        """The plan of all processes together, as far as its total; the rest is that of one."""
        most = self._settings.most
        plan = super().plan(None if memory_bytes is None else max(1, memory_bytes // most))
        return replace(plan, base_bytes=plan.base_bytes + (most - 1) * plan.total_bytes, process_bytes=())

    def _maker(self, path: Path) -> Callable[[], WorkerProcess]:
        if self._settings.launcher == "local":
            return super()._maker(path)
        launch = RayLauncher(self._spec.options.threads or 1)
        return RemoteReplicas(launch, path, host=self._settings.listen, spawner=self._process.spawner)

    def _client(
        self, process: WorkerProcess, ready: ModelReady, restart: Start, plan: MemoryPlan
    ) -> EngineClient:
        assert self._encoder is not None
        start = CheckedStart(restart, self._encoder)
        return ClusterClient(process, start.named(ready), start, self._settings, plan)


class CheckedStart:
    """Starts replicas of the weights that the first one has, and refuses others."""

    def __init__(self, start: Start, path: Path) -> None:
        self._start, self._path = start, path
        self._digest = self._found()

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
        """The present weights are those of all replicas from now on; what takes that back."""
        before, self._digest = self._digest, self._found()

        def take_back() -> None:
            self._digest = before

        return take_back

    def _found(self) -> str:
        with open_checkpoint(self._path) as checkpoint:
            return checkpoint.fingerprint
