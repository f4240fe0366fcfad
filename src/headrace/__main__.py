"""The `headrace` command, also as `python -m headrace`."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Run the command line; Ctrl-C while its modules are loaded is no traceback either."""
    try:
        importlib.import_module("headrace.cli.main").main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
