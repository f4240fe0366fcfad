#!/bin/sh
# Looks for spills in the kernels that were built, then builds and runs the C++ tests under ASan+UBSan and under TSan,
# and for ARM where qemu-user is installed. Portable code and this machine's best instruction set are checked, all
# that it has with --all. With --if-changed nothing but the spills is checked where native/verified.txt says that
# these sources passed before; it is written when everything has passed.
# Usage: scripts/test_native.sh [--all | --if-changed] [folder of the environment's programs]
set -eu
cd "$(dirname "$0")/.."
mode=
case "${1:-}" in --*) mode=$1; shift ;; esac
case "$mode" in "" | --all | --if-changed) ;; *) echo "test_native: unknown option $mode" >&2; exit 2 ;; esac
PATH="$PWD/${1:-.venv/bin}:$PATH"
export CXX="${CXX:-c++}"
python=$(command -v python)

echo "== spills"
"$python" scripts/check_spills.py

if [ "$mode" = --if-changed ] && "$python" scripts/native_record.py covers; then
  echo "SKIPPED: ASan+UBSan, TSan and ARM, which passed with the same sources (make test-native runs them all the same)"
  exit 0
fi

# Kernels that cannot run here need no checks, and take half of the time to build.
if [ "$mode" = --all ]; then
  isas=$("$python" -c "from headrace import _native; print('|'.join(_native.usable_isas()))")
else
  isas=$("$python" scripts/native_record.py isas)
fi
threaded="test_(pool|executor|group|moe|sample|turns)" # the programs in which several threads run
for sanitizer in address thread; do
  echo "== $sanitizer sanitizer: $isas"
  only=
  if [ "$sanitizer" = thread ]; then only=$threaded; fi
  cmake -S . -B "build/$sanitizer" -G Ninja -DHEADRACE_MODULE=OFF -DHEADRACE_TESTS=ON \
    -DHEADRACE_SANITIZE="$sanitizer" -DHEADRACE_ISAS="$isas" -DHEADRACE_ONLY_TESTS="$only" >/dev/null
  cmake --build "build/$sanitizer" >/dev/null
  ctest --test-dir "build/$sanitizer" --output-on-failure -j 2
done

arm=skipped
if command -v qemu-aarch64-static >/dev/null || command -v qemu-aarch64 >/dev/null; then
  echo "== ARM under qemu"
  "$python" -c "import ziglang" 2>/dev/null || "$python" -m pip install -q --disable-pip-version-check ziglang
  PYTHON="$python" scripts/test_neon.sh
  arm=run
else
  echo "ARM tests skipped: there is no qemu-aarch64 (Debian: apt install qemu-user)"
fi
"$python" scripts/native_record.py write "$isas" "$arm"
