#!/bin/sh
# Looks for spills in the kernels that were built, then builds and runs the C++ tests under ASan+UBSan and under TSan,
# and for ARM where qemu-user is installed.
# Usage: scripts/test_native.sh [folder of the environment's programs]
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/${1:-.venv/bin}:$PATH"
python=$(command -v python)

echo "== spills"
"$python" scripts/check_spills.py

# Kernels that cannot run here need no checks either, and take half of the time to build.
isas=$("$python" -c "from headrace import _native; print('|'.join(_native.usable_isas()))")
for sanitizer in address thread; do
  echo "== $sanitizer sanitizer"
  cmake -S . -B "build/$sanitizer" -G Ninja -DHEADRACE_MODULE=OFF -DHEADRACE_TESTS=ON \
    -DHEADRACE_SANITIZE="$sanitizer" -DHEADRACE_ISAS="$isas" >/dev/null
  cmake --build "build/$sanitizer" >/dev/null
done
ctest --test-dir build/address --output-on-failure
ctest --test-dir build/thread --output-on-failure -R "test_(pool|executor|moe|sample)"

if command -v qemu-aarch64-static >/dev/null || command -v qemu-aarch64 >/dev/null; then
  echo "== ARM under qemu"
  "$python" -c "import ziglang" 2>/dev/null || "$python" -m pip install -q --disable-pip-version-check ziglang
  PYTHON="$python" scripts/test_neon.sh
else
  echo "ARM tests skipped: there is no qemu-aarch64 (Debian: apt install qemu-user)"
fi
