"""Which variables of the environment are secrets: processes that only compute do not get them."""

from __future__ import annotations

import re
from collections.abc import Mapping

SECRETS = re.compile(r"(^|_)((API)?KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE)
"""Names of variables that a worker does not get: it computes, and calls nobody."""


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """The others."""
    return {name: value for name, value in variables.items() if not SECRETS.search(name)}
