"""What tests of the page use: where things are, and the page in a tab."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"


@dataclass
class Site:
    """The page in a tab of its own, and what must not happen there."""

    page: Page
    url: str
    foreign: list[str] = field(default_factory=list[str])
    """Requests to other servers: none is let through."""
    problems: list[str] = field(default_factory=list[str])
    """Errors of scripts, and violations of the policy."""

    def open(self, pane: str = "chat") -> Page:
        self.page.goto(f"{self.url}/#{pane}")
        self.page.wait_for_selector("main")
        return self.page

    def ask(self, text: str) -> Locator:
        """Send a message; the answer when it is complete."""
        box = self.page.get_by_label("Message", exact=True)
        box.fill(text)
        box.press("Enter")
        self.done()
        return self.page.locator("article.assistant").last

    def done(self) -> None:
        self.page.get_by_role("button", name="Regenerate").last.wait_for()
        # What makes HTML of Markdown is read with the first answer, which is shown as plain text until then.
        self.page.wait_for_function("() => !document.querySelector('.prose > .plain')")

    def use_key(self, key: str) -> None:
        dialog = self.page.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key of this server").fill(key)
        dialog.get_by_role("button", name="Use this key").click()
