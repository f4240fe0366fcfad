"""As `http`, encrypted."""

from __future__ import annotations

from headrace.data.connectors.http import url_source
from headrace.data.source import Connector

CONNECTOR = Connector(lambda opened: url_source(opened, "https"), ("httpfs",))
