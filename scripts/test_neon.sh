#!/bin/sh
# Cross-compiles the C++ tests for 64-bit ARM with the compiler in the PyPI package ziglang and runs them
# under qemu, so that the NEON kernels are tested on any machine. Usage: scripts/test_neon.sh [build folder]
# PYTHON names the interpreter that has ziglang (default: .venv/bin/python).
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
build=${1:-build/neon}

qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || {
  echo "test_neon: there is no qemu-aarch64 here; install it (Debian: apt install qemu-user) and run this again" >&2
  exit 1
}
"$python" -c "import ziglang" 2>/dev/null || {
  echo "test_neon: $python has no ziglang; install it ($python -m pip install ziglang) and run this again" >&2
  exit 1
}
PATH="$PWD/.venv/bin:$PATH" # cmake and ninja as the build uses them

CXX="$python -m ziglang c++ -target aarch64-linux-musl" cmake -S . -B "$build" -G Ninja \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_EXE_LINKER_FLAGS=-static \
  -DHEADRACE_MODULE=OFF -DHEADRACE_TESTS=ON >/dev/null
cmake --build "$build" -j 2

printf '%s\n' native/tests/test_*.cpp | xargs -P 2 -I {} sh -c \
  'name=$(basename "$3" .cpp); "$1" "$2/$name" && echo "$name passed" || { echo "$name failed"; exit 1; }' \
  sh "$qemu" "$build" {}
