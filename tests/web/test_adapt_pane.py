"""The pane of the adaptive loop: a task is diagnosed, learned, judged, promoted and rolled back there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_site import AXE
from fake import FakeModel
from in_process import Running, server_of
from learning import fill, learning_server, words
from test_accessibility import violations
from test_judge import expert, judged, right

from headrace.adapt.decisions.shadow import catch_up
from headrace.adapt.traffic.examples import ExampleStore
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

pytestmark = pytest.mark.xdist_group("browser")
NAME = '<img src=x onerror="alert(1)"> mail'
ADMIN, PLAIN = "admin-key-0123456789", "plain-key-0123456789"
KEYS = {"api_key": (PLAIN,), "admin_api_key": (ADMIN,)}


@pytest.fixture
def loop(browser: object, tmp_path: Path) -> Iterator[tuple[Running, ExampleStore]]:
    """A server with keys, and what it has collected."""
    model = load_model("embed", EngineOptions(threads=1))
    with learning_server(tmp_path, lambda text: text, model, margin=0.05, **KEYS) as (server, _, store):
        yield server, store
    model.close()


def test_a_person_decides(loop: tuple[Running, ExampleStore], visit: Callable[..., Any]) -> None:
    server, store = loop
    task = fill(store, 250, nano_usd=300_000)
    store.rename(task, NAME)
    store.database.execute("UPDATE examples SET outcome = 'length' WHERE id <= 7")
    site = visit(server.url)
    page = site.open("adapt")
    site.use_key(ADMIN)
    page.get_by_role("button", name=NAME).click()
    card = page.get_by_role("region", name=NAME)
    card.get_by_role("row", name="length 7").wait_for()
    assert card.get_by_role("button", name="Promote").is_disabled(), "nothing is proposed"
    assert card.get_by_role("button", name="Roll back").is_disabled()
    card.get_by_role("button", name="Diagnose").click()
    card.get_by_role("region", name="What a student could answer").get_by_role("row").nth(3).wait_for()
    card.get_by_role("button", name="Train").click()
    card.get_by_text("tried on").wait_for()
    card.get_by_role("button", name="Shadow").click()
    card.get_by_text("Capital 1.00 of 20").wait_for()
    card.get_by_text("not measured yet").wait_for()
    assert card.get_by_role("button", name="Promote").is_disabled()
    fill(store, 300, first=1000, nano_usd=300_000)
    card.get_by_role("button", name="Shadow").click()
    page.get_by_text("Capital 20").wait_for()
    alerts = page.get_by_role("region", name="Alerts")
    page.get_by_role("button", name="Refresh").click()
    alerts.get_by_text("is ready").wait_for()
    card.get_by_role("button", name="Promote").click()
    dialog = page.get_by_role("dialog", name="Promote this student")
    dialog.get_by_label("Requests at first (%)").fill("25")
    dialog.get_by_role("button", name="Promote", exact=True).click()
    decisions = card.get_by_role("region", name="Decisions")
    decisions.get_by_role("row").filter(has_text="promoted").filter(has_text="over HTTP").wait_for()
    card.get_by_text("It gets 25 %").wait_for()
    card.get_by_role("button", name="Roll back").click()
    decisions.get_by_role("row").filter(has_text="rolled back").filter(has_text="over HTTP").wait_for()
    states = [text.split("\t")[2] for text in decisions.get_by_role("row").all_inner_texts()[1:]]
    assert states == ["rolled back", "promoted", "ready", "shadow", "trained"]
    page.reload()
    card.get_by_text("Capital 20").wait_for()
    assert page.locator("img").count() == 0, "a name is text"


def test_axe_finds_nothing_in_a_task(loop: tuple[Running, ExampleStore], visit: Callable[..., Any]) -> None:
    if not AXE.is_file():
        pytest.skip("web/node_modules has no axe-core: npm ci --prefix web")
    server, store = loop
    http, admin = server.http(), {"authorization": f"Bearer {ADMIN}"}
    task = fill(store, 250, nano_usd=300_000)
    for action in ("train", "shadow"):
        assert http.post(f"/v1/adapt/{action}", json={"task": task}, headers=admin).status_code == 200
    fill(store, 300, first=1000, nano_usd=300_000)
    assert http.post("/v1/adapt/shadow", json={"task": task}, headers=admin).status_code == 200
    site = visit(server.url, bypass_csp=True)
    page = site.open(f"adapt/{task}")
    site.use_key(ADMIN)
    page.get_by_role("region", name="Decisions").wait_for()
    page.evaluate(AXE.read_text())
    for width in (380, 1280):
        page.set_viewport_size({"width": width, "height": 860})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert violations(page) == [], (width, scheme)
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(overflow) <= 0, "nothing is wider than the window"
    page.get_by_role("button", name="Promote").click()
    page.get_by_role("dialog", name="Promote this student").wait_for()
    assert violations(page) == []


def test_a_person_checks_the_judge(loop: tuple[Running, ExampleStore], visit: Callable[..., Any]) -> None:
    server, store = loop
    task, student = judged(store, count=60)
    catch_up(store, student, words, compare=expert)
    [(compared,)] = store.database.query("SELECT count(*) FROM comparisons")
    site = visit(server.url, bypass_csp=True)
    page = site.open(f"adapt/{task}")
    site.use_key(ADMIN)
    judge = page.get_by_role("region", name="Judge")
    judge.get_by_text(f"{compared} pairs for less than $0.0001").wait_for()
    judge.get_by_text("more labels are needed").wait_for()
    tried = page.get_by_role("region", name="Kinds of students that were tried")
    assert tried.get_by_role("row").count() == 7
    tried.get_by_role("row", name="tagger").get_by_text("not tried: ").wait_for()
    tried.get_by_role("row", name="head, chosen").wait_for()
    page.set_viewport_size({"width": 380, "height": 860})
    narrow = tried.get_by_role("row", name="tagger").bounding_box()
    assert narrow is not None and narrow["height"] < 150, "a reason is no column of single words"
    page.set_viewport_size({"width": 1280, "height": 860})

    judge.get_by_role("button", name="Label answers").click()
    dialog = page.get_by_role("dialog", name="Which answer is better?")
    texts = dialog.locator("pre")
    texts.first.wait_for()
    if AXE.is_file():
        page.evaluate(AXE.read_text())
        assert violations(page) == []
    question, first, _ = texts.all_inner_texts()
    dialog.get_by_role("button", name="Answer 1" if right(question) == first else "Answer 2").click()
    page.wait_for_function(
        "before => document.querySelector('dialog[open] pre').innerText !== before", arg=question
    )
    dialog.get_by_role("button", name="Skip").click()
    page.keyboard.press("Escape")
    judge.get_by_text("2, of these 1 skipped").wait_for()
    judge.get_by_text("in 100 %, at least").wait_for()
    rows = store.database.query("SELECT label, labeled_by FROM comparisons WHERE label IS NOT NULL")
    assert len(rows) == 2 and all("over HTTP" in str(who) for _, who in rows)


def test_it_says_how_to_enable_it_and_who_may_look(
    loop: tuple[Running, ExampleStore], visit: Callable[..., Any]
) -> None:
    with server_of(FakeModel()) as plain:
        site = visit(plain.url)
        site.open("adapt").get_by_text("[adapt]").wait_for()
    site = visit(loop[0].url)
    page = site.open("adapt")
    site.use_key(PLAIN)
    page.get_by_role("alert").get_by_text("admin").wait_for()
    assert page.get_by_role("table").count() == 0
