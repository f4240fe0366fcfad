"""Pictures of each pane for the documentation: `TEST_SCREENSHOTS=1` writes them into docs/images."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_site import ROOT
from in_process import Running, server_of

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

pytestmark = pytest.mark.xdist_group("browser")
MAX_BYTES = 100_000
QUESTIONS = ("find all python files changed today", "list files by size", "extract a gzipped tar archive")


@pytest.fixture(scope="module")
def engine(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    models = [load_model(name, EngineOptions(threads=1)) for name in ("mini", "embed", "tagger")]
    store = tmp_path_factory.mktemp("store") / "store.sqlite3"
    with server_of(*models, store=store, log_requests=True) as server:
        yield server
    for model in models:
        model.close()


def ask(server: Running, times: int, stop: threading.Event | None = None) -> None:
    http = server.http()
    for number in range(times):
        if stop is not None and stop.is_set():
            return
        question = f"{QUESTIONS[number % len(QUESTIONS)]} in folder {number}"
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 60}
        assert http.post("/v1/chat/completions", json=body).status_code == 200


def chat(server: Running, site: Any) -> None:
    site.open()
    for question in QUESTIONS[:2]:
        site.ask(question)
    site.page.get_by_role("button", name="Explain").last.click()
    site.page.get_by_role("table").wait_for()


def live(server: Running, site: Any) -> Callable[[], None]:
    site.open("live").get_by_role("status").get_by_text("Live", exact=True).wait_for()
    stop = threading.Event()
    asking = [threading.Thread(target=ask, args=(server, 10_000, stop)) for _ in range(3)]
    for thread in asking:
        thread.start()
    site.page.wait_for_timeout(int(os.environ.get("TEST_LIVE_MS", "2500")))

    def end() -> None:
        stop.set()
        for thread in asking:
            thread.join()

    return end


def requests(server: Running, site: Any) -> None:
    ask(server, 6)
    page = site.open("requests")
    page.locator("tbody tr").nth(5).wait_for()
    page.locator("tbody tr button").nth(1).click()
    page.get_by_role("region", name="Where the time went").wait_for()


def entities(server: Running, site: Any) -> None:
    site.open("playground/entities").get_by_role("button", name="Find entities").click()
    site.page.locator("mark").first.wait_for()


def embeddings(server: Running, site: Any) -> None:
    site.open("playground/embeddings").get_by_role("button", name="Compare").click()
    site.page.get_by_role("region", name="Similarity matrix").wait_for()


SHOWN = ((chat, "light"), (live, "dark"), (requests, "light"), (entities, "dark"), (embeddings, "light"))


@pytest.mark.parametrize(("show", "scheme"), SHOWN, ids=[show.__name__ for show, _ in SHOWN])
def test_a_picture_of_each_pane(
    engine: Running, visit: Callable[..., Any], tmp_path: Path, show: Any, scheme: str
) -> None:
    site = visit(engine.url, color_scheme=scheme, viewport={"width": 1120, "height": 700})
    end = show(engine, site)
    folder = ROOT / "docs" / "images" if os.environ.get("TEST_SCREENSHOTS") else tmp_path
    folder.mkdir(exist_ok=True)
    picture = folder / f"page-{show.__name__}.png"
    site.page.screenshot(path=picture)
    if end is not None:
        end()
    assert 5_000 < picture.stat().st_size <= MAX_BYTES
