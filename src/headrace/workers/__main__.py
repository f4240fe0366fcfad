"""What a worker process runs: `python -m headrace.workers FD`, where FD is its end of the pipe."""

from __future__ import annotations

import gc
import importlib
import socket
import sys

gc.disable()  # what is imported stays: nothing is gained by looking through it
worker = importlib.import_module("headrace.workers.engine_server")
gc.freeze()
gc.enable()
worker.EngineServer(socket.socket(fileno=int(sys.argv[1]))).run()
