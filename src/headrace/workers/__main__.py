"""Entry point of a worker process: `python -m headrace.workers FD [TURNS]`.

The numbers are of its end of the socket and of the file of turns.
"""

from __future__ import annotations

import gc
import importlib
import socket
import sys

gc.disable()  # imported objects live forever, so collecting them is useless
worker = importlib.import_module("headrace.workers.engine_server")
gc.freeze()
gc.enable()
numbers = [int(argument) for argument in sys.argv[1:]]
worker.EngineServer(socket.socket(fileno=numbers[0]), *numbers[1:]).run()
