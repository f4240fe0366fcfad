"""What tests of data share: a server's address, and engines over datasets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.data.engine import DataEngine


@dataclass(frozen=True)
class Server:
    """A server of a database on 127.0.0.1; `run` gives it SQL as its administrator."""

    kind: str
    port: int
    user: str
    password: str
    database: str
    run: Callable[[str], str] = field(repr=False)

    def dataset(self, table: str, **more: Any) -> dict[str, Any]:
        return {
            "from": f"{self.kind}:{table}",
            "port": self.port,
            "user": self.user,
            "database": self.database,
            "secret": f"env:TEST_{self.kind.upper()}_PASSWORD",
        } | more


class DataEngineMaker:
    """Makes engines and closes them at the end."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._made: list[DataEngine] = []

    def __call__(self, datasets: Mapping[str, Any], **sql: Any) -> DataEngine:
        made = DataEngine(datasets, sql, self._cache)
        self._made.append(made)
        return made

    def close(self) -> None:
        for one in self._made:
            one.close()


class Listener:
    """A port that counts who connects to it, and says nothing."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.connections = 0
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()

    def close(self) -> None:
        self._socket.close()
