"""The replicas of a model on the page, in a real browser, of a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser_site import AXE
from test_accessibility import WIDTHS, violations

pytestmark = pytest.mark.xdist_group("browser")
FLAGS = ("--replicas", "2", "--threads", "1", "--max-num-seqs", "4", "--port", "0")
KEYS = ("--api-key", "user-key", "--admin-api-key", "admin-key")


@pytest.fixture(scope="module")
def server(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    folder = tmp_path_factory.mktemp("served")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    command = [sys.executable, "-m", "headrace", "cluster", "serve", "nano", *FLAGS, *KEYS]
    command += ["--store", str(folder / "store.sqlite3")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=kept, cwd=folder) as process:
        try:
            assert process.stdout
            found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert found
            yield found[0]
        finally:
            process.terminate()
            process.wait(30)


def opened(server: str, visit: Callable[..., Any], key: str, **options: Any) -> Any:
    site = visit(server, **options)
    site.open("live")
    site.use_key(key)
    return site.page


def test_replicas_are_shown_with_their_nodes_and_load(server: str, visit: Callable[..., Any]) -> None:
    page = opened(server, visit, "admin-key")
    card = page.get_by_role("region", name="Replicas of nano", exact=True)
    card.get_by_role("row").nth(2).wait_for()
    for number in range(2):
        words = card.get_by_role("row").nth(number + 1).inner_text().split()
        assert words[:3] == [str(number), "local", "running"] and len(words) >= 9, words
    heads = card.get_by_role("columnheader").all_inner_texts()
    assert {"Node", "Requests", "KV cache in use", "Prefix cache"} <= set(heads)
    assert "2 replicas · on 1 node · routed by kv · 0 requests, 0 waiting" in card.inner_text()
    assert page.locator(".tile", has_text="Running").inner_text().endswith("of 8 places")


def test_a_key_that_may_not_see_them_is_told_so(server: str, visit: Callable[..., Any]) -> None:
    page = opened(server, visit, "user-key")
    page.get_by_text("The replicas are not shown: this needs a key with the scope 'admin'").wait_for()
    assert page.get_by_role("region", name="Models", exact=True).is_visible(), "the rest is there"


@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_among_replicas(server: str, visit: Callable[..., Any], width: str) -> None:
    if not AXE.is_file():
        pytest.skip("web/node_modules has no axe-core: npm ci --prefix web")
    options = {"viewport": WIDTHS[width], "bypass_csp": True, "reduced_motion": "reduce"}
    page = opened(server, visit, "admin-key", **options)
    page.get_by_role("region", name="Replicas of nano", exact=True).get_by_role("row").nth(2).wait_for()
    page.evaluate(AXE.read_text())
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == [], scheme
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0, "nothing is wider than the window"
