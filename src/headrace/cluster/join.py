"""A replica on any machine: `python -m headrace.cluster.join HOST PORT`, with a key on standard input.

It connects to the front, proves that it knows the key, says whether it runs the same, and is a worker then.
SIGTERM asks the front to drain it.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from headrace import __version__
from headrace.cluster.sealed_socket import NotAuthenticated, SealedSocket, seal
from headrace.cluster.weights_digest import weights_digest
from headrace.errors import HeadraceError
from headrace.workers.engine_server import EngineServer
from headrace.workers.protocol import HEADER_BYTES

MAX_HELLO_BYTES = 64 * 1024
CONNECT_S = 10.0

Message = TypeVar("Message", bound=Struct)


class Hello(Struct, frozen=True, kw_only=True):
    """From the front: what the other replicas run."""

    version: str
    model: str
    digest: str


class HelloReply(Struct, frozen=True, kw_only=True):
    """From the replica: its process, and why it cannot join, if it cannot."""

    pid: int
    refusal: str | None = None


def send_hello(end: SealedSocket, message: Struct) -> None:
    """As a frame."""
    body = msgspec.msgpack.encode(message)
    end.sendall(len(body).to_bytes(HEADER_BYTES, "little") + body)


def receive_hello(end: SealedSocket, kind: type[Message]) -> Message:
    """Raises NotAuthenticated for what is none."""
    try:
        size = int.from_bytes(_take(end, HEADER_BYTES), "little")
        if size > MAX_HELLO_BYTES:
            raise NotAuthenticated(f"a first message of {size:,} bytes")
        return msgspec.msgpack.decode(_take(end, size), type=kind)
    except (OSError, ValueError) as error:
        raise NotAuthenticated(f"no first message of a replica: {error}") from None


def _take(end: SealedSocket, size: int) -> bytes:
    taken = b""
    while len(taken) < size:
        part = end.recv(size - len(taken))
        if not part:
            raise OSError("the connection ended")
        taken += part
    return taken


def refusal(hello: Hello) -> str | None:
    """Why a replica with this installation and these files cannot join."""
    if hello.version != __version__:
        return f"it has version {__version__} of headrace and the front {hello.version}: install the same"
    try:
        own = weights_digest(Path(hello.model))
    except (OSError, HeadraceError) as error:
        return f"it cannot read {hello.model}: {error}"
    if own != hello.digest:
        return f"the files of {hello.model} have the digest {own[:12]} there and {hello.digest[:12]} here"
    return None


def main() -> None:
    """See the module."""
    host, port = sys.argv[1], int(sys.argv[2])
    key = bytes.fromhex(sys.stdin.readline().strip())
    end = seal(socket.create_connection((host, port), timeout=CONNECT_S), key, is_front=False)
    why = refusal(receive_hello(end, Hello))
    send_hello(end, HelloReply(pid=os.getpid(), refusal=why))
    if why is not None:
        sys.exit(1)
    EngineServer(cast("socket.socket", end), leaves=True).run()


if __name__ == "__main__":
    main()
