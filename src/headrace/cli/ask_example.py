"""A small shop for `headrace ask --example`: a database, a handbook, and the settings that name them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

QUESTION = "How many customers live in Oslo?"
CUSTOMERS = (
    ("Ann Lee", "Oslo", "pro", 49.0),
    ("Bob Stone", "Bergen", "free", 0.0),
    ("Cem Aydin", "Oslo", "pro", 49.0),
    ("Dora Marsh", "Leeds", "team", 199.0),
    ("Eva Lind", "Turku", "free", 0.0),
)
HANDBOOK: Mapping[str, str] = {
    "refunds.md": "# Refunds\n\nRefunds are paid within 14 days. They go to the card that paid.\n",
    "delivery.md": "# Delivery\n\nCustomers who live in Oslo get parcels the next day. Others wait a week.\n",
    "plans.md": "# Plans\n\nThe pro plan costs 49 dollars a month. A team shares one bill of 199 dollars.\n",
    "support.md": "# Support\n\nSupport answers on working days from 9 to 17. Teams have a phone number.\n",
}
SETTINGS = """# In place of SQLite: from = "postgres:public.customers", and host, user, database, secret.
[datasets.customers]
from = "sqlite:shop.sqlite3#customers"
"""


def make_example(folder: Path) -> Path:
    """Make the files in a folder, those that are not there yet."""
    (folder / "handbook").mkdir(parents=True, exist_ok=True)
    texts = {f"handbook/{name}": text for name, text in HANDBOOK.items()} | {"headrace.toml": SETTINGS}
    for name, text in texts.items():
        if not (folder / name).exists():
            (folder / name).write_text(text, "utf-8")
    if not (folder / "shop.sqlite3").exists():
        with closing(sqlite3.connect(folder / "shop.sqlite3")) as database, database:
            database.execute("CREATE TABLE customers (name TEXT, city TEXT, plan TEXT, monthly REAL)")
            database.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", CUSTOMERS)
    return folder
