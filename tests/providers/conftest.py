"""Tests of remote models need the extra `gateway`."""

from __future__ import annotations

import pytest

for library in ("aiohttp", "cryptography", "jsonschema_rs"):
    pytest.importorskip(library, reason=f"the extra gateway is not installed ({library})")
