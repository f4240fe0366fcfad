"""Entry point of a worker process: `python -m headrace.workers FD`, where FD is its end of the socket."""

from __future__ import annotations

import gc
import importlib
import socket
import sys

gc.disable()  # imported objects live forever, so collecting them is useless
worker = importlib.import_module("headrace.workers.engine_server")
gc.freeze()
gc.enable()
worker.EngineServer(socket.socket(fileno=int(sys.argv[1]))).run()
