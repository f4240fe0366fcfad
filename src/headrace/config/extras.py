"""Parts that are installed only where they are used: `pip install 'headrace[EXTRA]'`."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from headrace.errors import UsageError


class ExtraMissing(UsageError):
    """A part of Headrace is used that is not installed."""

    remedy = "Run the `pip install` command of the message."
    status = 501
    code = "extra_missing"


def require(extra: str, *libraries: str) -> None:
    """Raise ExtraMissing, with the command that installs it, unless all `libraries` of an extra are there."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise ExtraMissing(
                f"this needs {library}, which is not installed: pip install 'headrace[{extra}]'"
            )


def extra_module(extra: str, name: str, *libraries: str) -> ModuleType:
    """A module of Headrace that needs an extra, by its name, so that nothing else imports it."""
    require(extra, *libraries)
    return importlib.import_module(name)
