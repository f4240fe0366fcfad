"""The recorder that the settings describe."""

from __future__ import annotations

from headrace.config.settings import Settings
from headrace.economy.budget_settings import read_budgets
from headrace.economy.prices import PriceBook
from headrace.economy.recorder import LedgerRecorder
from headrace.storage.database import Database


def ledger_recorder(database: Database, settings: Settings) -> LedgerRecorder:
    """Prices, ledger and budgets of the settings, in a store. Raises UsageError where they are wrong."""
    return LedgerRecorder(database, PriceBook(settings.prices), read_budgets(settings.budgets))
