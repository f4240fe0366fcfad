"""The child process: prepares once, then does each piece of work in a fork of itself, under limits.

A fork costs a few milliseconds, has all that was prepared, and its death harms nothing else.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from headrace.isolation.limits import ProcessLimits, apply

Ask = Callable[[bytes], bytes]
"""Of a fork: gives a question to the giver of the work, and waits for the answer. EOFError where that gives
none. From any thread, one question after the other."""
Work = Callable[[bytes, Ask], bytes]

SETUP = struct.Struct("<Q")  # bytes of what `prepare` gets
CALL = struct.Struct("<dQi")  # CPU seconds, bytes of memory, niceness
SIZE = struct.Struct("<Q")  # bytes of what follows
QUESTION = 1 << 63  # in the size of what a fork sends: it is no output, and the fork waits for an answer
STATUS = struct.Struct("<i")  # how the fork ended, as os.waitpid says
OUT_OF_MEMORY = 77  # exit code


def serve(prepare: Callable[[bytes], Work]) -> NoReturn:
    """The whole of a child process: `sys.argv[1]` is its end of the socket. Ends when the other end closes.

    Every call comes with a connection of its own: the work reads its input from it, may ask questions over
    it, writes its output, and then comes how the fork ended. Where the other end of it is closed before, the
    fork is killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that uses this one decides
    control = socket.socket(fileno=int(sys.argv[1]))
    setup = receive(control, SETUP.unpack(receive(control, SETUP.size))[0])
    work = prepare(setup)
    del setup
    gc.freeze()  # a collection in a fork would copy every page
    _Server(control, work).run()
    os._exit(0)


def receive(connection: socket.socket, size: int) -> bytes:
    """So many bytes; EOFError where the other side closes before."""
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


class _Server:
    """Hands each connection to a fork that is waiting for one, and then makes the next."""

    def __init__(self, control: socket.socket, work: Work) -> None:
        self._control, self._work = control, work
        self._busy: dict[int, socket.socket] = {}
        self._killed: set[int] = set()
        self._spare, self._spare_pid = self._fork()

    def run(self) -> None:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while True:
            poll = select.poll()
            for one in (self._control, reader):
                poll.register(one, select.POLLIN)
            watched = {one.fileno(): pid for pid, one in self._busy.items() if pid not in self._killed}
            for descriptor in watched:
                poll.register(descriptor, 0)  # nothing but that the other end is closed
            ready = {descriptor for descriptor, _ in poll.poll()}
            for descriptor in ready & watched.keys():
                self._kill(watched[descriptor])
            if reader.fileno() in ready:
                with suppress(BlockingIOError):
                    reader.recv(4096)
                self._reap()
            if self._control.fileno() in ready and not self._accept():
                for pid in self._busy:
                    self._kill(pid)
                return

    def _kill(self, pid: int) -> None:
        """End a fork whose result is not wanted. It is not reaped yet: the number is still its own."""
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def _accept(self) -> bool:
        header, descriptors, _, _ = socket.recv_fds(self._control, CALL.size, 1)
        if not descriptors:
            return False
        connection = socket.socket(fileno=descriptors[0])
        self._busy[self._spare_pid] = connection
        with self._spare, suppress(OSError):  # it was killed: its status goes to the connection
            socket.send_fds(self._spare, [header], descriptors)
        self._spare, self._spare_pid = self._fork()
        return True

    def _fork(self) -> tuple[socket.socket, int]:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._control.close()
            for other in self._busy.values():
                other.close()
            _run_fork(theirs, self._work)
        theirs.close()
        return ours, pid

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._spare_pid:  # killed from outside
                    self._spare.close()
                    self._spare, self._spare_pid = self._fork()
                    continue
                self._killed.discard(pid)
                with self._busy.pop(pid) as connection, suppress(OSError):
                    connection.sendall(STATUS.pack(status))


def _run_fork(channel: socket.socket, work: Work) -> NoReturn:
    code = 1
    try:
        header, descriptors, _, _ = socket.recv_fds(channel, CALL.size, 1)
        if not descriptors:  # the server ends
            os._exit(0)
        connection = socket.socket(fileno=descriptors[0])
        cpu_s, memory_bytes, niceness = CALL.unpack(header)
        os.nice(niceness)
        payload = receive(connection, SIZE.unpack(receive(connection, SIZE.size))[0])
        apply(ProcessLimits(cpu_s, memory_bytes))
        output = work(payload, asker(connection))
        connection.sendall(SIZE.pack(len(output)) + output)
        code = 0
    except MemoryError:
        code = OUT_OF_MEMORY
    finally:
        os._exit(code)


def asker(connection: socket.socket) -> Ask:
    """Questions over a connection."""
    turn = threading.Lock()

    def ask(question: bytes) -> bytes:
        with turn:
            connection.sendall(SIZE.pack(QUESTION | len(question)) + question)
            return receive(connection, SIZE.unpack(receive(connection, SIZE.size))[0])

    return ask
