"""LLM(journal=): a program that was killed goes on where it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace import LLM
from headrace.errors import UsageError
from headrace.journal.folder import JournalInUse
from headrace.journal.log import Log
from headrace.journal.reader import RecordKind
from headrace.journal.records import OpenedRequest, encode

PROGRAM = """
import json, os, signal, sys
from headrace import LLM

llm = LLM("mini", journal=sys.argv[1])
print(llm.generate("The river", max_tokens=24, temperature=0.9, ignore_eos=True).text, flush=True)
print(llm.generate("The river", max_tokens=24, temperature=0.9, ignore_eos=True).text, flush=True)
count = 0
text = ""
for chunk in llm.stream("The fox", max_tokens=400, temperature=0.9, ignore_eos=True):
    text += chunk.text
    count += 1
    if len(sys.argv) > 2 and count == 4:
        print(json.dumps(text), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
print(json.dumps(text))
llm.close()
"""


def run(*words: str) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True, timeout=120, check=False
    )
    return found.stdout.splitlines()


def test_a_killed_program_goes_on(tmp_path: Path) -> None:
    folder = str(tmp_path / "journal")
    killed = run(folder, "kill")
    again = run(folder)
    assert killed[-1][:-1] and again[-1].startswith(killed[-1][:-1]) and len(again[-1]) > len(killed[-1])
    assert killed[:-1] == again[:-1]
    anew = run(folder)
    assert anew != again, "after its end a program begins anew, with other seeds"
    with LLM("mini", journal=folder), pytest.raises(JournalInUse):
        LLM("mini", journal=folder)


def test_what_a_server_has_left_is_not_taken_for_a_programs(tmp_path: Path) -> None:
    log = Log(tmp_path)
    opened = OpenedRequest(request_id="r1", nonce="0" * 32, path="/v1/completions", body=b"{}")
    log.append(RecordKind.OPENED, 1, 0, encode(opened))
    log.write()
    log.close()
    with pytest.raises(UsageError, match="is a server's"):
        LLM("mini", journal=tmp_path)
    with pytest.raises(UsageError, match="names no folder"):
        LLM("mini", journal="")
    log = Log(tmp_path)
    assert log.unfinished() == [1]
    log.close()
