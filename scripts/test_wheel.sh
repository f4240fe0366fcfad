#!/bin/sh
# Installs the wheel in dist/ into an empty environment in another folder, with no compiler to be found, and looks
# whether a model answers, every module of the base install is imported and none of what an extra brings comes along.
# Usage: scripts/test_wheel.sh [python]
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3}
root=$PWD
set -- "$root"/dist/headrace-*.whl
if [ $# -ne 1 ] || [ ! -f "$1" ]; then
  echo "test_wheel: dist/ must hold one wheel, build it with: make wheel" >&2
  exit 1
fi
wheel=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$python" -m venv venv

# Nothing but the environment's own programs is on the path.
inside() {
  env -u PYTHONPATH -u CXX PATH="$folder/venv/bin" HOME="$folder" XDG_CACHE_HOME="$folder/cache" \
    XDG_DATA_HOME="$folder/data" "$folder/venv/bin/$@"
}

inside python -m pip install -q --disable-pip-version-check --only-binary :all: "$wheel"
echo "> extract a gzipped tar archive"
answer=$(inside headrace run "extract a gzipped tar archive" < /dev/null)
echo "$answer"
case "$answer" in
  "tar "*) ;;
  *)
    echo "test_wheel: that is no command of tar" >&2
    exit 1
    ;;
esac
inside python "$root/scripts/import_all.py"
