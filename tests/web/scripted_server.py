"""A server in a process of its own, to be killed: `scripted_server.py PORT`. Its model talks slowly."""

from __future__ import annotations

import sys

from fake import FakeEngine, FakeModel
from in_process import running_server

if __name__ == "__main__":
    model = FakeModel(engine=FakeEngine("word " * 500, 0.02, ends=True))
    with running_server(model, port=int(sys.argv[1])) as server:
        server.thread.join()
