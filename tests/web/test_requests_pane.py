"""The requests that have ended, in a real browser: filtered, opened, explained, sent again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import Running, running_server

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

pytestmark = pytest.mark.xdist_group("browser")
CHAT = {"messages": [{"role": "user", "content": "list files by size"}], "max_tokens": 20}


@pytest.fixture(scope="module")
def engine(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = load_model("mini", EngineOptions(threads=1))
    store: Path = tmp_path_factory.mktemp("store") / "store.sqlite3"
    with running_server(model, store=store, log_requests=True, log_content=True) as server:
        yield server
    model.close()


def test_a_request_is_found_opened_and_sent_again(engine: Running, visit) -> None:
    http = engine.http()
    assert http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert http.post("/v1/completions", json={"prompt": "ls", "max_tokens": 4}).status_code == 200
    assert http.post("/v1/chat/completions", json=CHAT | {"top_p": 99}).status_code == 400
    site = visit(engine.url)
    page = site.open("requests")
    rows = page.locator("tbody tr")
    rows.nth(2).wait_for()
    page.get_by_label("Status", exact=True).select_option("failed")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    rows.get_by_role("button").click()
    facts = page.locator(".pairs-list")
    facts.get_by_text("400", exact=True).wait_for()
    assert "Error" in facts.inner_text()
    page.get_by_label("Status", exact=True).select_option("completed")
    page.get_by_label("Endpoint").select_option("/v1/chat/completions")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    rows.get_by_role("button").first.click()
    tree = page.get_by_role("region", name="Where the time went")
    tree.get_by_role("row", name="decode").wait_for()
    tree.get_by_role("button", name="engine").click()
    tree.get_by_role("row", name="decode").wait_for(state="detached")
    page.get_by_text("What was sent").click()
    page.get_by_role("button", name="Send it again").click()
    page.get_by_role("region", name="The new reply").get_by_text('"finish_reason"').wait_for()
    page.get_by_role("button", name="Refresh").click()
    page.wait_for_function("() => document.querySelectorAll('table.log > tbody > tr').length >= 3")
    page.get_by_label("Find by id").fill("no such request")
    page.get_by_text("fits the filter").wait_for()
