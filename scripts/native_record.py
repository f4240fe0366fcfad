"""The record of the last complete pass of the C++ checks: native/verified.txt.

    native_record.py isas             the instruction sets that the gate checks here, as portable|avx512
    native_record.py covers           succeeds where the record holds here
    native_record.py write SETS ARM   write it: SETS as portable|avx512, ARM is run or skipped

The record holds while the sources, the checks themselves and the compiler are the same, it names the
instruction sets that the gate would check here, and nothing was skipped that could run here.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "native" / "verified.txt"
CHECKS = (
    "CMakeLists.txt",
    "scripts/check_spills.py",
    "scripts/native_record.py",
    "scripts/test_native.sh",
    "scripts/test_neon.sh",
)
HEAD = """\
# Written by scripts/test_native.sh after all of its checks passed; the gate skips them while this holds.
# Do not edit: run `make test-native`.
"""


def main(command: str, *arguments: str) -> int:
    if command == "isas":
        print("|".join(gate_isas()))
        return 0
    if command == "write":
        isas, arm = arguments
        facts = {"sources": digest(), "compiler": compiler(), "isas": isas.replace("|", " "), "arm": arm}
        RECORD.write_text(HEAD + "".join(f"{name}: {value}\n" for name, value in facts.items()))
        print(f"wrote {RECORD.relative_to(ROOT)}: commit it with the sources")
        return 0
    reason = why_not(read(RECORD))
    print(reason or f"{RECORD.relative_to(ROOT)} holds: these sources passed with {compiler()}")
    return 1 if reason else 0


def why_not(record: dict[str, str]) -> str:
    """Why the checks must run here; nothing where the record holds."""
    if not record:
        return f"there is no {RECORD.relative_to(ROOT)}"
    if record.get("sources") != digest():
        return "the native sources or their checks differ from those that passed last"
    if record.get("compiler") != compiler():
        return f"they passed with {record.get('compiler')}, here is {compiler()}"
    if missing := set(gate_isas()) - set(record.get("isas", "").split()):
        return f"they did not pass with {', '.join(sorted(missing))}, which this machine has"
    if record.get("arm") != "run" and has_qemu():
        return "the ARM tests were skipped, here they can run"
    return ""


def read(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split(": ", 1) for line in lines if ": " in line and not line.startswith("#"))


def digest() -> str:
    """Of every file below native/ but the record, and of the files that build and check them."""
    files = {path for path in (ROOT / "native").rglob("*") if path.is_file()} - {RECORD}
    files |= {ROOT / name for name in CHECKS}
    whole = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.relative_to(ROOT).as_posix()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{content} {path.relative_to(ROOT).as_posix()}\n".encode())
    return whole.hexdigest()


def compiler() -> str:
    """Its name and version, without the distribution's own number: `g++ 12.2.0`."""
    command = os.environ.get("CXX", "c++")
    if shutil.which(command) is None:
        return "none"
    said = subprocess.run([command, "--version"], capture_output=True, text=True).stdout
    line = re.sub(r"\s*\([^)]*\)", "", said.splitlines()[0] if said else command)
    return re.sub(r"^c\+\+", "g++", line)


def gate_isas() -> list[str]:
    """Portable code and the best instruction set of this machine."""
    from headrace import _native

    usable = _native.usable_isas()
    return list(dict.fromkeys([usable[0], usable[-1]]))


def has_qemu() -> bool:
    return any(shutil.which(name) for name in ("qemu-aarch64-static", "qemu-aarch64"))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
