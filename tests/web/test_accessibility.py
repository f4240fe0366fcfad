"""Who cannot see or has no mouse: axe-core in each pane, scheme and width, and every flow by the keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser_site import AXE
from fake import FakeEngine, FakeModel
from in_process import Running, running_server

pytestmark = pytest.mark.xdist_group("browser")
ANSWER = """# Title

Some *text* with `code` and [a link](https://example.com).

- [x] done

> quote

```js
let a = 1; // one
```

| a | b |
|---|---|
| 1 | 2 |"""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
INSIDE = "['BODY', 'DIALOG'].includes((document.activeElement.closest('dialog, body')).tagName)"
WIDTHS = {
    "wide": {"width": 1280, "height": 860},
    "usual": {"width": 1200, "height": 760},
    "narrow": {"width": 390, "height": 780},
}


@pytest.fixture(scope="module")
def talker(browser: object) -> Iterator[Running]:
    with running_server(FakeModel(engine=FakeEngine(ANSWER, ends=True))) as server:
        yield server


def violations(page: Any) -> list[str]:
    """What axe-core finds, with the elements."""
    found = page.evaluate("rules => axe.run(document, {runOnly: rules})", RULES)
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def chat(site: Any) -> None:
    site.open()
    page = site.page
    site.ask("Say all")
    page.get_by_role("button", name="Explain").click()
    page.get_by_role("table").last.wait_for()
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Answer as", exact=True).select_option("schema")


def live(site: Any) -> None:
    site.open("live").get_by_role("img", name="Tokens: generated").wait_for()
    site.page.locator("summary").first.click()


def requests(site: Any) -> None:
    site.open("requests").get_by_role("button", name="Explain the request").first.click()
    site.page.get_by_role("table").last.wait_for()


def embeddings(site: Any) -> None:
    site.open("playground/embeddings").get_by_role("button", name="Compare").click()
    site.page.get_by_role("alert").wait_for()


def entities(site: Any) -> None:
    site.open("playground/entities").get_by_label("Labels").wait_for()


def rerank(site: Any) -> None:
    site.open("playground/rerank").get_by_label("Query").wait_for()


def key(site: Any) -> None:
    site.open().get_by_role("button", name="Set an API key").click()
    site.page.get_by_role("dialog").wait_for()


PANES = (chat, live, requests, embeddings, entities, rerank, key)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("show", PANES, ids=lambda show: show.__name__)
def test_axe_finds_nothing(talker: Running, visit: Callable[..., Any], show: Any, width: str) -> None:
    if not AXE.is_file():
        pytest.skip("web/node_modules has no axe-core: npm ci --prefix web")
    # axe-core is put into the page from outside, which the page's own policy would not allow.
    site = visit(talker.url, viewport=WIDTHS[width], bypass_csp=True, reduced_motion="reduce")
    page = site.page
    if show is requests:
        assert talker.http().post("/v1/completions", json={"prompt": "x", "max_tokens": 3}).status_code == 200
    show(site)
    page.evaluate(AXE.read_text())
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == [], scheme
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0, "nothing is wider than the window"
    if page.locator(".waterfall .table-box").count():
        inner = "box => box.scrollWidth - box.clientWidth"
        assert page.locator(".waterfall .table-box").last.evaluate(inner) <= 1, (  # of rounding
            "and no waterfall than its place"
        )


def focused(page: Any) -> str:
    return page.evaluate(
        "(one => one.getAttribute('aria-label') || one.innerText || one.tagName)(document.activeElement)"
    )


def tab_to(page: Any, name: str, keys: str = "Tab") -> None:
    """Press Tab until what has the focus is called so."""
    seen = []
    for _ in range(60):
        page.keyboard.press(keys)
        seen.append(focused(page))
        if seen[-1].strip() == name:
            return
    raise AssertionError(f"{keys} does not reach {name!r}, only {seen}")


def test_a_conversation_by_the_keyboard(talker: Running, visit: Callable[..., Any]) -> None:
    site = visit(talker.url)
    page = site.open()
    tab_to(page, "Skip to the content")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "MAIN"
    tab_to(page, "Message")
    page.keyboard.type("First line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second line")
    page.keyboard.press("Enter")
    site.done()
    assert page.locator("article.user p").inner_text() == "First line\nsecond line"
    assert focused(page) == "Message", "the focus stays where one writes on"
    tab_to(page, "Edit", "Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.getAttribute('aria-label') === 'Edit your message'")
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.activeElement.getAttribute('aria-label') === 'Edit'")
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    page.keyboard.type(" again")
    page.keyboard.press("Control+Enter")
    site.done()
    assert page.get_by_role("group", name="Versions").first.is_visible()


def test_dialogs_and_panes_by_the_keyboard(talker: Running, visit: Callable[..., Any]) -> None:
    site = visit(talker.url)
    page = site.open()
    tab_to(page, "Playground")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Playground").wait_for()
    tab_to(page, "Rerank")
    page.keyboard.press("Enter")
    page.get_by_label("Query").wait_for()
    tab_to(page, "Set an API key", "Shift+Tab")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="API key")
    dialog.wait_for()
    for _ in range(8):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    assert focused(page) == "Set an API key", "the focus is back where it was"


def test_a_screen_reader_hears_sentences(talker: Running, visit: Callable[..., Any]) -> None:
    site = visit(talker.url)
    page = site.open()
    site.ask("Say all")
    log = page.get_by_role("log")
    assert log.get_attribute("aria-live") == "polite"
    parts = log.locator("p").all_inner_texts()
    assert parts[-1] == "The answer is complete."
    assert 1 < len(parts) < 12, "not each token"
