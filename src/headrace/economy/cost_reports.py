"""What providers say that they billed, from their own reports of costs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from msgspec import Struct

from headrace.economy.reconcile import UNREADABLE, Billed, billed_of_reply
from headrace.errors import HeadraceError, UsageError

TIMEOUT_S = 30.0
MAX_PAGES, MAX_BYTES = 400, 32 * 2**20


class CostReport(Struct, frozen=True):
    """Where a provider's report is: its address, the variable with an administrator's key, and that key's
    header."""

    url: str
    path: str
    variable: str
    header: str
    prefix: str = ""
    others: Mapping[str, str] = {}


REPORTS: Mapping[str, CostReport] = {
    "openai": CostReport(
        "https://api.openai.com", "/v1/organization/costs", "OPENAI_ADMIN_KEY", "authorization", "Bearer "
    ),
    "anthropic": CostReport(
        "https://api.anthropic.com",
        "/v1/organizations/cost_report",
        "ANTHROPIC_ADMIN_KEY",
        "x-api-key",
        others={"anthropic-version": "2023-06-01"},
    ),
}


class ReportUnavailable(HeadraceError):
    """A provider's report of costs could not be read."""

    remedy = "Check the administrator's key and the network, or name a file with the statement."


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def fetch_costs(provider: str, first: str, last: str, url: str | None = None) -> list[Billed]:
    """What a provider billed from the first to the last day, by day and model.

    Raises UsageError where there is no key, ReportUnavailable where the report cannot be read.
    """
    report = REPORTS[provider]
    if url is not None and urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"--url is {url!r}, it must be an address of http or https")
    key = os.environ.get(report.variable)
    if not key:
        raise UsageError(f"{report.variable} is not set: the report of costs needs an administrator's key")
    headers = {report.header: report.prefix + key, **report.others}
    query = _query(provider, first, last)
    found: list[Billed] = []
    for _ in range(MAX_PAGES):
        page = _page(f"{url or report.url}{report.path}?{urlencode(query, doseq=True)}", headers)
        try:
            found += billed_of_reply(page)
        except UNREADABLE as error:
            raise ReportUnavailable(f"the report of {provider} cannot be read: {error!r}") from None
        if not page.get("has_more"):
            return found
        query["page"] = page.get("next_page")
    raise ReportUnavailable(f"the report of {provider} has more than {MAX_PAGES} pages: ask for fewer days")


def _query(provider: str, first: str, last: str) -> dict[str, Any]:
    start = datetime.fromisoformat(first).replace(tzinfo=UTC)
    end = datetime.fromisoformat(last).replace(tzinfo=UTC) + timedelta(days=1)
    if provider == "openai":
        times: dict[str, Any] = {"start_time": int(start.timestamp()), "end_time": int(end.timestamp())}
        return times | {"bucket_width": "1d", "group_by": ["line_item"], "limit": 180}
    stamps = {"starting_at": start, "ending_at": end}
    times = {name: f"{at:%Y-%m-%dT%H:%M:%SZ}" for name, at in stamps.items()}
    return times | {"bucket_width": "1d", "group_by[]": ["description"], "limit": 31}


def _page(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    try:
        with build_opener(_NoRedirects).open(Request(url, headers=dict(headers)), timeout=TIMEOUT_S) as reply:
            page: Any = json.loads(reply.read(MAX_BYTES))
    except HTTPError as error:
        raise ReportUnavailable(f"the report of costs was refused with status {error.code}") from None
    except (URLError, OSError, ValueError, RecursionError) as error:
        raise ReportUnavailable(f"the report of costs cannot be read: {error}") from None
    if not isinstance(page, dict):
        raise ReportUnavailable("the report of costs is no JSON object")
    return page  # pyright: ignore[reportUnknownVariableType]
