"""Live figures in a real browser, of a real engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from in_process import Running, server_of

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

pytestmark = pytest.mark.xdist_group("browser")
CHAT = {"messages": [{"role": "user", "content": "list files by size"}], "max_tokens": 20}


@pytest.fixture(scope="module")
def engine(browser: object) -> Iterator[Running]:
    models = [load_model(name, EngineOptions(threads=1, max_num_seqs=4)) for name in ("mini", "embed")]
    with server_of(*models) as server:
        yield server
    for model in models:
        model.close()


def figure(page, label: str) -> str:
    return page.locator(".tile", has=page.get_by_text(label, exact=True)).locator(".figure").inner_text()


def test_figures_follow_the_engine(engine: Running, visit) -> None:
    site = visit(engine.url)
    page = site.open("live")
    page.get_by_role("status").get_by_text("Live", exact=True).wait_for()
    for _ in range(5):
        assert engine.http().post("/v1/chat/completions", json=CHAT).status_code == 200
    page.wait_for_function(
        "() => [...document.querySelectorAll('.tile')].some("
        "tile => tile.innerText.startsWith('Time to first token') && !tile.innerText.includes('–'))"
    )
    assert "tokens/s" in figure(page, "Generated") and "ms" in figure(page, "Time to first token")
    assert page.get_by_role("img", name="Tokens: generated").is_visible()
    maps = page.get_by_role("img", name="mini: ")
    assert maps.get_attribute("aria-label").endswith(" free")
    assert maps.locator(".cell").count() > 10
    row = page.get_by_role("region", name="Models").get_by_role("row", name="mini")
    assert "loaded" in row.inner_text() and "MiB" in row.inner_text()
    page.get_by_label("Model", exact=True).select_option("embed")
    assert page.get_by_role("region", name="Models").get_by_role("row").count() == 2
    page.locator("summary").first.click()
    table = page.get_by_role("table", name="Tokens")
    assert table.get_by_role("columnheader").all_inner_texts() == ["Time", "generated", "read"]


def test_who_does_not_look_does_not_ask(engine: Running, visit) -> None:
    site = visit(engine.url)
    page = site.open("live")
    page.get_by_role("status").get_by_text("Live", exact=True).wait_for()
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/v1/live")):
        page.get_by_role("link", name="Chat").click()
