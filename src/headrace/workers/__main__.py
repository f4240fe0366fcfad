"""What a worker process runs: `python -m headrace.workers FD`, where FD is its end of the pipe."""

from __future__ import annotations

import socket
import sys

from headrace.workers.worker import Worker

Worker(socket.socket(fileno=int(sys.argv[1]))).run()
