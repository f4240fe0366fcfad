"""A network between a front and a replica that can be cut, healed and slow: a proxy of one TCP connection."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from headrace.elastic.placement import NoRoom

PART_BYTES = 1 << 16


class FaultProxy:
    """Passes on to `host:port`. While it is cut nothing is passed, and nobody is told."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._closed = False
        self._whole = threading.Event()
        self._whole.set()
        self.delay_s = 0.0
        self._ends: list[socket.socket] = [self._listener]
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """From now on both sides hear nothing."""
        self._whole.clear()

    def heal(self) -> None:
        """What was sent meanwhile arrives."""
        self._whole.set()

    def close(self) -> None:
        """At the end of a test."""
        self._closed = True
        self.heal()
        for end in list(self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _serve(self) -> None:
        with suppress(OSError):
            here = self._listener.accept()[0]
            self._ends.append(here)
            # Not before: a front waits for the first words of whoever connects, and not for long.
            there = socket.create_connection(self._address)
            self._ends.append(there)
            if self._closed:
                here.close()
                there.close()
                return
            threading.Thread(target=self._pass, args=(here, there), daemon=True).start()
            self._pass(there, here)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while True:
                part = source.recv(PART_BYTES)
                self._whole.wait()
                time.sleep(self.delay_s)
                if not part:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(part)


Launch = Callable[[str, int, bytes], subprocess.Popen[bytes]]


class FaultyNetwork:
    """A `Launch` whose replicas are behind proxies, in the order in which they were started."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._lock = threading.Lock()
        self.most = 1000
        self.proxies: list[FaultProxy] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, host: str, port: int, key: bytes) -> subprocess.Popen[bytes]:
        with self._lock:
            if sum(one.poll() is None for one in self.processes) >= self.most:
                raise NoRoom("a replica takes 1 core: there is none")
            proxy = FaultProxy(host, port)
            self.proxies.append(proxy)
            self.processes.append(self._launch("127.0.0.1", proxy.port, key))
            return self.processes[-1]

    def close(self) -> None:
        """At the end of a test; nothing is launched after it."""
        with self._lock:
            self.most = 0
        for proxy in self.proxies:
            proxy.close()
        for process in self.processes:
            process.kill()
            process.wait()
