"""DuckDB's extensions from wheels of PyPI: files that DuckDB has signed, loaded by their path.

Nothing is ever installed or fetched while running, and nothing of such a wheel is imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from headrace.config.extras import ExtraMissing, require

BUILT_IN = frozenset({"parquet", "json", "icu", "core_functions"})


def check_engine() -> None:
    """ExtraMissing where DuckDB or Arrow is not installed."""
    require("data", "duckdb", "pyarrow")


def extension_path(name: str, extra: str) -> str:
    """The file of an extension; ExtraMissing where its wheel is not installed."""
    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        files = sorted(Path(folder).glob(f"extensions/*/{name}.duckdb_extension"))
        if files:
            return str(files[-1])
    raise ExtraMissing(
        f"this needs the extension {name} of DuckDB, which is not installed: pip install 'headrace[{extra}]'"
    )
