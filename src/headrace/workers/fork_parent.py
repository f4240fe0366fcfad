"""The process that forks the workers of a server: `python -m headrace.workers.fork_parent FD`.

It has imported what they need, and has one thread, so that a fork has no lock that nobody releases. It ends
when its socket is closed and its last worker has ended.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from headrace.workers.forked import FORK, NUMBER

_MAX_FILES = 3  # one that tells of the fork, the worker's socket, the file of turns

Work = Callable[[socket.socket, Sequence[int]], object]


class ForkParent:
    """Forks a process for `work` for each request on `control`, and tells of each how it ended."""

    def __init__(self, control: socket.socket, work: Work) -> None:
        self._control, self._work = control, work
        self._forks: dict[int, socket.socket] = {}
        self._open = True

    def run(self) -> None:
        """Until the socket is closed and all forks have ended."""
        ended, wakes = socket.socketpair()
        for one in (ended, wakes):
            one.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while self._open or self._forks:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            if self._open:
                poll.register(self._control, select.POLLIN)
            ready = {number for number, _ in poll.poll()}
            if ended.fileno() in ready:
                with suppress(BlockingIOError):
                    ended.recv(4096)
                self._reap()
            if self._open and self._control.fileno() in ready:
                self._take((ended, wakes))

    def _take(self, own: Sequence[socket.socket]) -> None:
        said, files, _, _ = socket.recv_fds(self._control, len(FORK), _MAX_FILES)
        if not said:
            self._open = False
            return
        told, end, *others = files
        tells = socket.socket(fileno=told)
        pid = os.fork()
        if pid == 0:
            self._become([tells, *own], end, others)
        for number in (end, *others):
            os.close(number)
        self._forks[pid] = tells
        file = os.pidfd_open(pid)  # it is not reaped yet: the number is its own
        with suppress(OSError):  # nobody wants to know
            socket.send_fds(tells, [NUMBER.pack(pid)], [file])
        os.close(file)

    def _become(self, own: Sequence[socket.socket], end: int, others: Sequence[int]) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (*own, self._control, *self._forks.values()):
                one.close()
            self._work(socket.socket(fileno=end), others)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                with self._forks.pop(pid) as tells, suppress(OSError):
                    tells.sendall(NUMBER.pack(status))


def main() -> None:
    """See the module."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server decides when to stop
    gc.disable()  # imported objects live forever, so collecting them is useless
    worker = importlib.import_module("headrace.workers.engine_server")
    gc.freeze()  # a collection in a fork would copy every page

    def work(end: socket.socket, others: Sequence[int]) -> None:
        gc.enable()
        worker.EngineServer(end, *others).run()

    ForkParent(socket.socket(fileno=int(sys.argv[1])), work).run()


if __name__ == "__main__":
    main()
