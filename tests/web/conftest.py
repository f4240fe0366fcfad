"""A headless Chromium for the tests of the page; without it, or without playwright, they are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from browser_site import CHROMIUM, Site
from fake import FakeEngine, FakeModel
from in_process import Running, running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of one module: while it is there an event loop runs in this thread, which other tests cannot have."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as runner:
        started = runner.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Site]]:
    """Open tabs on servers; at the end of the test none has done what the policy forbids."""
    sites: list[Site] = []

    def start(url: str, **options: Any) -> Site:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        context.set_default_timeout(30_000)
        site = Site(context.new_page(), url)
        sites.append(site)

        def check(route: Any) -> None:
            if route.request.url.startswith((url, "data:", "blob:")):
                route.continue_()
            else:
                site.foreign.append(route.request.url)
                route.abort()

        context.route("**/*", check)
        site.page.on("pageerror", lambda error: site.problems.append(str(error)))
        site.page.on(
            "console",
            lambda message: (
                site.problems.append(message.text) if "Content Security" in message.text else None
            ),
        )
        return site

    yield start
    for site in sites:
        site.page.context.close()
    for site in sites:
        assert not site.foreign
        assert not site.problems


@pytest.fixture
def scripted() -> Iterator[Callable[..., Running]]:
    """Start servers of a model that gives an answer from a script, a character at a step."""
    contexts = []

    def start(answer: str = "Hello, **you**.", *, pause_s: float = 0.0, **flags: Any) -> Running:
        model = FakeModel(engine=FakeEngine(answer, pause_s, ends=True))
        contexts.append(running_server(model, **flags))
        return contexts[-1].__enter__()

    yield start
    for context in contexts:
        context.__exit__(None, None, None)
