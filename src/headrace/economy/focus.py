"""The ledger as a dataset of the FinOps Open Cost and Usage Specification (FOCUS), version 1.2, as CSV.

All its 21 mandatory columns are there, and of the others those that say something here. A row is a day, a
key, a model and a class. Source: focus.finops.org, specification v1-2.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

from headrace.economy.machine import IDLE, MACHINE_TIME
from headrace.economy.money import plain_usd
from headrace.economy.quantities import CLASSES
from headrace.storage.sql_store import SqlStore

COLUMNS = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency"),
    *("ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost"),
    *("EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName"),
    *("PublisherName", "ResourceId", "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId"),
    *("SubAccountId", "SubAccountName", "Tags", "x_Route", "x_Status"),
)
_LOCAL = "Headrace"


def write_focus(database: SqlStore, out: TextIO, first: str, last: str) -> int:
    """Write the rows from the first to the last day; how many."""
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    count = 0
    for row in _rows(database, first, last):
        writer.writerow(row)
        count += 1
    return count


def _rows(database: SqlStore, first: str, last: str) -> Iterator[dict[str, str]]:
    if not database.exists:
        return
    found: list[Any] = database.query(
        """SELECT one.day, one.provider, one.model, one.key_name, one.route, one.kind = 'correction',
            one.status, posting.class, sum(posting.quantity), sum(posting.nano_usd)
            FROM ledger_postings posting JOIN ledger_entries one ON one.id = posting.entry
            WHERE posting.class != '' AND one.day BETWEEN ? AND ?
            GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8""",
        (first, last),
    )
    for row in found:
        yield _row(*row)


def _row(
    day: str, provider: str, model: str, key: str, route: str, corrects: int, status: str, name: str,
    quantity: int, nano_usd: int,
) -> dict[str, str]:  # fmt: skip
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    month = start.replace(day=1)
    cost, issuer = plain_usd(nano_usd), provider or _LOCAL
    is_tokens = name in CLASSES and CLASSES[name].direction != "other"
    unit = "Tokens" if is_tokens else "Milliseconds" if name in (MACHINE_TIME, IDLE) else "Units"
    return {
        "BilledCost": cost,
        "BillingAccountId": issuer,
        "BillingAccountName": issuer,
        "BillingCurrency": "USD",
        "BillingPeriodStart": _stamp(month),
        "BillingPeriodEnd": _stamp((month + timedelta(days=32)).replace(day=1)),
        "ChargeCategory": "Usage",
        "ChargeClass": "Correction" if corrects else "",
        "ChargeDescription": f"{model} {name} of {key or 'everybody'}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": _stamp(start),
        "ChargePeriodEnd": _stamp(start + timedelta(days=1)),
        "ConsumedQuantity": str(quantity),
        "ConsumedUnit": unit,
        "ContractedCost": cost,
        "EffectiveCost": cost,
        "InvoiceIssuerName": issuer,
        "ListCost": cost,
        "PricingQuantity": str(quantity),
        "PricingUnit": unit,
        "ProviderName": issuer,
        "PublisherName": issuer,
        "ResourceId": f"{provider or 'local'}/{model}",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": f"{issuer} API",
        "ServiceSubcategory": "Generative AI",
        "SkuId": f"{provider or 'local'}/{model}:{name}",
        "SubAccountId": key,
        "SubAccountName": key,
        "Tags": json.dumps({"route": route} if route else {}),
        "x_Route": route,
        "x_Status": status,
    }


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
