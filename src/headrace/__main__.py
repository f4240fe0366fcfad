"""The `headrace` command, also as `python -m headrace`.

Little is imported here, so that Ctrl-C while the command is imported ends it as quietly as later.
"""

import importlib
import sys


def main() -> None:
    """Run the command and exit; 130 where it was interrupted."""
    try:
        importlib.import_module("headrace.cli.main").main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
