"""Exits with an error if a package of `headrace[train]` is missing; the recipes import it first."""

import sys
from importlib.util import find_spec

NEEDED = ("torch", "safetensors", "matplotlib")

missing = [name for name in NEEDED if find_spec(name) is None]
if missing:
    print(
        f"error: the recipes need {', '.join(missing)}: pip install 'headrace[train]'",
        file=sys.stderr,
    )
    sys.exit(1)
