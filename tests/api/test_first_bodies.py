"""The first bodies of a kind, read by several threads at once."""

from __future__ import annotations

import subprocess
import sys

# What msgspec knows of a struct it finds out at the first conversion, which is not safe in threads.
PROGRAM = '''
import sys, threading, types
from headrace.api.http.body import converted

sys.setswitchinterval(1e-6)
FIELDS = """
from __future__ import annotations
from msgspec import Meta, Struct
from typing import Annotated, Any, Literal
class Inner(Struct, forbid_unknown_fields=True):
    a: Annotated[int, Meta(ge=0)] | None = None
    b: list[dict[str, Any]] | None = None
    c: Literal["x", "y"] | None = None
class Outer(Struct, kw_only=True):
    one: Inner | None = None
    many: list[Inner] | None = None
    text: Annotated[str, Meta(min_length=1)] | None = None
"""
CONTENT = {"one": {"a": 1, "b": [{}], "c": "x"}, "many": [{"a": 2}], "text": "s"}
for number in range(400):
    module = types.ModuleType(f"fresh{number}")
    sys.modules[module.__name__] = module
    exec(FIELDS, module.__dict__)
    start = threading.Barrier(4)

    def read():
        start.wait()
        assert converted(module.Outer, CONTENT).many[0].a == 2

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("read")
'''


def test_threads_read_the_first_bodies_of_a_kind() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "read\n"), run.stderr
