"""A server that is killed while it keeps answers loses at most the last ones, and none is half there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace.gateway.answer_record import unpacked
from headrace.storage.cached_answers import CachedAnswers, open_cache

WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from cached import Cached, Echo, chat
async def main():
    cached = Cached(Echo(), Path(sys.argv[1]))
    for number in range(100_000):
        await cached.ask(chat(f"{sys.argv[3]} {number} " + "word " * 50))
        print(number, flush=True)
asyncio.run(main())
"""


def test_kill_during_inserts_leaves_whole_answers(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite3"
    for round in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parent), str(round)],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.02 * round)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        answers = CachedAnswers(open_cache(path))
        found = answers.all()
        assert len(found) > round
        for one in found:
            stored = answers.body(one.key)
            assert stored is not None and unpacked(stored[1], stored[0]).batches
        bodies = answers.database.query("SELECT count(*) FROM cached_bodies")[0][0]
        assert bodies == len(found)
        answers.database.close()
