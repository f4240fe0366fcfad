#!/bin/sh
# Builds a wheel with every instruction set inside into dist/. Its manylinux tag is what auditwheel finds that the
# compiled module needs of glibc, so it depends on the machine that builds: docs/release.md says which to take.
# Usage: scripts/build_wheel.sh [folder of the environment's programs]
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/${1:-.venv/bin}:$PATH"

rm -rf dist build/wheel/*.whl
mkdir -p build/wheel dist
python -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir build/wheel .
auditwheel repair --wheel-dir dist build/wheel/*.whl
ls -l dist
