"""The process that talks with Ray, for a front: `python -m headrace.cluster.ray_driver FD`.

Ray ends a process whose cluster it has lost. This one's end costs the front nothing: its replicas have
connections of their own, and the next start of one makes a new driver.
"""

from __future__ import annotations

import importlib
import signal
import socket
import sys
import threading
from typing import Any

import msgspec
from msgspec import Struct

from headrace.cluster.replica_actor import ReplicaActor
from headrace.elastic.placement import Node, NoRoom, lacking
from headrace.errors import HeadraceError

ANSWER_S = 120.0
LENGTH_BYTES = 4


class Start(Struct, frozen=True, tag=True):
    """Start a replica on a node with so many free cores."""

    number: int
    host: str
    port: int
    key: bytes
    cpus: int


class Wait(Struct, frozen=True, tag=True):
    """For the end of a replica, by the number of its start."""

    number: int
    replica: int
    timeout_s: float


class Kill(Struct, frozen=True, tag=True):
    """End a replica."""

    number: int
    replica: int


class DriverAnswer(Struct, frozen=True):
    """To the order of that number: a process id, or an exit code, None while it runs. `lacks` with `error`:
    no node has room."""

    number: int
    value: int | None = None
    error: str | None = None
    lacks: bool = False


Order = Start | Wait | Kill


def send(end: socket.socket, message: Struct) -> None:
    """As a length and a message."""
    body = msgspec.msgpack.encode(message)
    end.sendall(len(body).to_bytes(LENGTH_BYTES, "little") + body)


def receive(end: socket.socket) -> bytes | None:
    """The next message; None at the end."""
    header = _exactly(end, LENGTH_BYTES)
    return None if header is None else _exactly(end, int.from_bytes(header, "little"))


def _exactly(end: socket.socket, size: int) -> bytes | None:
    taken = b""
    while len(taken) < size:
        try:
            part = end.recv(size - len(taken))
        except OSError:
            return None
        if not part:
            return None
        taken += part
    return taken


class Driver:
    """Carries out orders, each on a thread."""

    def __init__(self, ray: Any, end: socket.socket) -> None:
        self._ray, self._end = ray, end
        self._actors: dict[int, Any] = {}
        self._writing = threading.Lock()

    def run(self) -> None:
        """Until the front has closed."""
        while (body := receive(self._end)) is not None:
            order: Order = msgspec.msgpack.decode(body, type=Order)
            threading.Thread(target=self._answer, args=(order,), daemon=True).start()

    def _answer(self, order: Order) -> None:
        try:
            answer = DriverAnswer(order.number, self._do(order))
        except HeadraceError as error:
            answer = DriverAnswer(order.number, error=error.message, lacks=isinstance(error, NoRoom))
        except Exception as error:
            answer = DriverAnswer(order.number, error=f"Ray: {type(error).__name__}: {str(error)[:1000]}")
        with self._writing:
            send(self._end, answer)

    def _do(self, order: Order) -> int | None:
        ray = self._ray
        if isinstance(order, Start):
            why = lacking(self._nodes(), order.cpus)
            if why is not None:
                raise NoRoom(why)
            actor = ray.remote(ReplicaActor).options(num_cpus=order.cpus).remote()
            try:
                pid: int = ray.get(actor.start.remote(order.host, order.port, order.key), timeout=ANSWER_S)
            except Exception:
                ray.kill(actor)
                raise
            self._actors[order.number] = actor
            return pid
        actor = self._actors.get(order.replica)
        if actor is None:
            return -signal.SIGKILL
        if isinstance(order, Kill):
            actor.kill.remote()
            return None
        try:
            code: int | None = ray.get(actor.wait.remote(order.timeout_s), timeout=order.timeout_s + 1.0)
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayError:  # the actor or its node is gone
            code = -signal.SIGKILL
        if code is not None and self._actors.pop(order.replica, None) is not None:
            ray.kill(actor)
        return code

    def _nodes(self) -> list[Node]:
        state = importlib.import_module("ray._private.state")
        free: dict[str, dict[str, float]] = state.available_resources_per_node()
        found = [
            Node(
                name=str(one["NodeManagerAddress"]),
                cpus=one["Resources"].get("CPU", 0.0),
                free_cpus=free.get(one["NodeID"], {}).get("CPU", 0.0),
                alive=bool(one["Alive"]),
            )
            for one in self._ray.nodes()
        ]
        alive = {node.name for node in found if node.alive}
        return [node for node in found if node.alive or node.name not in alive]


def main() -> None:
    """See the module."""
    end = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the front decides
    try:
        ray: Any = importlib.import_module("ray")
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        send(end, DriverAnswer(-1, error=f"Ray did not start: {type(error).__name__}: {str(error)[:1000]}"))
        return
    send(end, DriverAnswer(-1))
    Driver(ray, end).run()
    ray.shutdown()


if __name__ == "__main__":
    main()
