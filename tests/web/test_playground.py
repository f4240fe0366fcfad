"""The playgrounds in a real browser, with the models that ship with Headrace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from in_process import Running, server_of

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def engine(browser: object) -> Iterator[Running]:
    models = [load_model(name, EngineOptions(threads=1)) for name in ("embed", "tagger")]
    with server_of(*models) as server:
        yield server
    for model in models:
        model.close()


def test_texts_are_compared(engine: Running, visit) -> None:
    page = visit(engine.url).open("playground/embeddings")
    page.get_by_label("Texts, one a line").fill("a cat\na kitten\nstock prices")
    page.get_by_role("button", name="Compare").click()
    matrix = page.get_by_role("region", name="Similarity matrix")
    matrix.wait_for()
    values = [
        [float(cell) for cell in row.locator("td").all_inner_texts()]
        for row in matrix.locator("tbody tr").all()
    ]
    assert [values[at][at] for at in range(3)] == [1, 1, 1]
    assert values[0][1] == values[1][0] > values[0][2]
    page.get_by_role("button", name="Explain").click()
    page.get_by_role("row", name="encode").first.wait_for()


def test_entities_are_marked_where_they_are(engine: Running, visit) -> None:
    page = visit(engine.url).open("playground/entities")
    page.get_by_label("Text", exact=True).fill("😀 Ada Lovelace met Charles Babbage in London.")
    page.get_by_label("Labels").fill("place")
    page.get_by_role("button", name="Find entities").click()
    mark = page.locator(".marked mark", has_text="London")
    mark.wait_for()
    assert mark.inner_text().split() == ["London", "place"]
    assert page.locator(".marked").inner_text().startswith("😀 Ada Lovelace met Charles Babbage in London")


def test_documents_are_ranked(engine: Running, visit) -> None:
    page = visit(engine.url).open("playground/rerank")
    page.get_by_label("Query").fill("Which process uses a port?")
    page.get_by_label("Documents, one a line").fill(
        "tar xzf extracts an archive\nlsof -i lists the processes with a socket on a port"
    )
    page.get_by_role("button", name="Rank", exact=True).click()
    first = page.locator(".ranking li").first
    first.wait_for()
    assert "lsof" in first.inner_text() and "was 2" in first.inner_text()


def test_what_cannot_be_done_is_told(engine: Running, visit) -> None:
    page = visit(engine.url).open("playground/embeddings")
    page.get_by_label("Model").select_option("tagger")
    page.get_by_role("button", name="Compare").click()
    assert "tagger" in page.get_by_role("alert").inner_text()
