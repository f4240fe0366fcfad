"""Build and install Headrace into the running environment, with any available C++ compiler.

Order: $CXX, g++ (12 or newer), clang++ (15 or newer), c++. If none is found, `ziglang` is installed from
PyPI and its compiler is used.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

MINIMUM = {"g++": 12, "clang++": 15, "c++": 12}


def main() -> int:
    environment = dict(os.environ)
    compiler = environment.get("CXX") or next((name for name in MINIMUM if usable(name)), None)
    if compiler is None:
        print("no C++ compiler found (g++ >= 12 or clang++ >= 15): falling back to ziglang from PyPI")
        compiler, archiver = zig_tools()
        environment["CMAKE_ARGS"] = f"-DCMAKE_AR={archiver} -DCMAKE_RANLIB={archiver}-index"
    environment["CXX"] = compiler
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    print(f"building with {compiler}")
    return pip("install", "--no-build-isolation", "-e", ".", environment=environment)


def usable(name: str) -> bool:
    """True if a compiler exists and is new enough."""
    if shutil.which(name) is None:
        return False
    version = subprocess.run([name, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True)
    found = re.match(r"(\d+)", version.stdout)
    minimum = MINIMUM["clang++"] if is_clang(name) else MINIMUM[name]
    return found is not None and int(found.group(1)) >= minimum


def is_clang(name: str) -> bool:
    return "clang" in subprocess.run([name, "--version"], capture_output=True, text=True).stdout


def zig_tools() -> tuple[str, str]:
    """Wrapper scripts for ziglang's compiler and archiver, since CMake needs each tool to be one program."""
    if pip("install", "ziglang") != 0:
        sys.exit("could not install ziglang: install g++ 12 or newer (Debian: apt install g++) and try again")
    folder = Path(sys.executable).parent
    for name, command in {"zig-c++": "c++", "zig-ar": "ar", "zig-ar-index": "ranlib"}.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {command} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(folder / "zig-c++"), str(folder / "zig-ar")


def pip(*arguments: str, environment: dict[str, str] | None = None) -> int:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
